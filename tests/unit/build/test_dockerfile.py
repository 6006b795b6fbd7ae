"""Dockerfiles are read as they are written elsewhere; what is not is refused with its line."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloister.build.dockerfile import parse_dockerfile
from cloister.build.instructions import Copy, Noted, Pairs, Run, parse_instructions
from cloister.build.recipe import parse_recipe
from cloister.errors import RequestError

BASE = b"FROM scratch\n"


def only(text: str) -> object:
    return parse_instructions(parse_dockerfile(text.encode(), "Dockerfile"))[0]


def test_a_line_goes_on_after_an_escape_past_comments_and_empty_lines() -> None:
    (statement,) = parse_dockerfile(b"RUN a \\\n# no\n\n  b \\\n  c\n", "f")
    assert statement.text.split() == ["a", "b", "c"]


def test_an_escaped_escape_continues_nothing() -> None:
    first, second = parse_dockerfile(b"RUN a \\\\\nRUN b\n", "f")
    assert (first.text, second.text) == ("a \\\\", "b")


def test_the_escape_can_be_chosen_in_the_first_line_only() -> None:
    (statement,) = parse_dockerfile(b"# escape=`\nRUN a `\n b\n", "f")
    assert statement.text == "a  b"
    assert len(parse_dockerfile(b"RUN x\n# escape=`\nRUN a `\nRUN b", "f")) == 3


def test_windows_line_ends_and_a_byte_order_mark_are_read_past() -> None:
    (statement,) = parse_dockerfile("\ufeffRUN a\r\n".encode(), "f")
    assert (statement.name, statement.text) == ("RUN", "a")


def test_each_statement_knows_its_line() -> None:
    places = [each.place for each in parse_dockerfile(b"\n# x\nFROM a\nRUN b \\\n c\nRUN d", "D")]
    assert places == ["D:3", "D:4", "D:6"]


def test_a_document_is_the_script_itself_where_nothing_else_stands_there() -> None:
    step = only("RUN <<EOF\na\nb\nEOF\n")
    assert isinstance(step, Run)
    assert step.command == "a\nb\n"


def test_a_document_behind_a_program_is_left_to_the_shell() -> None:
    step = only("RUN python3 - <<EOF && echo x\nprint(1)\nEOF\n")
    assert isinstance(step, Run)
    assert step.command == "python3 - <<EOF && echo x\nprint(1)\nEOF"


@pytest.mark.parametrize("line", ["echo $((1<<2))", "cat <<<word", "echo a<<b"])
def test_what_only_looks_like_a_document_is_none(line: str) -> None:
    step = only(f"RUN {line}\n")
    assert isinstance(step, Run)
    assert step.command == line


def test_documents_of_a_copy_are_files_and_keep_their_order() -> None:
    step = only("COPY <<a.txt <<-'b.txt' /dst/\none\na.txt\n\ttwo $X\nb.txt\n")
    assert isinstance(step, Copy)
    assert [(each.name, each.content, each.is_expanded) for each in step.documents] == [
        ("a.txt", "one\n", True),
        ("b.txt", "two $X\n", False),
    ]
    assert (step.sources, step.target) == ((), "/dst/")


def test_a_document_without_its_end_is_an_error_with_its_line() -> None:
    with pytest.raises(RequestError, match=r"D:2: the document .EOF. does not end"):
        parse_dockerfile(b"FROM a\nRUN <<EOF\nx\n", "D")


def test_a_list_is_an_argv_and_what_is_no_json_is_a_shell_line() -> None:
    listed, line = only('RUN ["a", "b c"]'), only("RUN [ -e /x ] && y")
    assert isinstance(listed, Run) and listed.command == ("a", "b c")
    assert isinstance(line, Run) and line.command == "[ -e /x ] && y"


def test_flags_of_copy_are_read() -> None:
    step = only("COPY --from=b --chown=1:2 --chmod=750 a b /c/")
    assert isinstance(step, Copy)
    assert (step.origin, step.chown, step.mode) == ("b", "1:2", 0o750)
    assert (step.sources, step.target, step.unpack) == (("a", "b"), "/c/", False)


def test_env_has_an_old_and_a_new_form() -> None:
    old, new = only("ENV A b c"), only('ENV A="b c" D=e')
    assert isinstance(old, Pairs) and old.pairs == (("A", "b c"),)
    assert isinstance(new, Pairs) and new.pairs == (("A", '"b c"'), ("D", "e"))


@pytest.mark.parametrize("name", ["EXPOSE 80", "VOLUME /x", "STOPSIGNAL 9", "HEALTHCHECK CMD x"])
def test_what_changes_nothing_here_is_said(name: str) -> None:
    assert isinstance(only(name), Noted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("RNU x", r'Dockerfile:1: no instruction is called "RNU"; did you mean RUN\?'),
        ("QQQQ x", "no instruction is called"),
        ("RUN", "RUN says nothing"),
        ("RUN --mount=type=bind,src=/ x", "RUN --mount is not supported"),
        ("RUN --network=host x", "the policy of the build decides"),
        ("RUN --priviledged x", "RUN --priviledged is not supported"),
        ("COPY --chwon=1 a b", r"did you mean --chown\?"),
        ("COPY a", "needs something to copy"),
        ("COPY --chmod=u+x a b", "write it in octal"),
        ("ADD http://x/y /z", "does not fetch"),
        ("ADD git@host:x /z", "does not fetch"),
        ("ONBUILD RUN x", "ONBUILD is not supported"),
        ("SHELL bash", "SHELL takes a list"),
        ("ENV A", "has no value"),
        ("ENV 1A=b", "write letters, digits"),
        ("ARG a-b=1", "write letters, digits"),
        ("FROM a b c", "write FROM image"),
        ("FROM a AS ../x", "a stage is called"),
        ("FROM a AS scratch", "a stage is called"),
        ('CMD ["a", 1]', "something other than texts"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        only(text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no instruction"),
        (b"# only\n", "no instruction"),
        (b"RUN x", "before the first FROM"),
        (b"ARG A=1\n", "there is no FROM"),
        (b"FROM a AS b\nFROM c AS B\n", 'called "b" already'),
        (b"FROM \xff\n", "D:1: it is not text"),
        (b"FROM a\0\n", "zero byte"),
        (b"# escape=x\nFROM a", "escape is"),
        (b"#" * (2**20 + 1), "the most is"),
    ],
)
def test_a_file_that_is_none_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse_recipe(data, "D")


def test_stages_hold_their_steps_and_arguments_before_them_are_apart() -> None:
    recipe = parse_recipe(b"ARG V=1\nFROM a AS one\nRUN x\nFROM one\nRUN y\nRUN z\n", "D")
    assert [len(stage.steps) for stage in recipe.stages] == [1, 2]
    assert len(recipe.arguments) == 1


@given(st.binary(max_size=400))
@example(b"FROM a\nRUN <<\n")
@example(b"COPY -- --\n")
@example(b"FROM a\nCOPY <<a<<b c\n")
def test_any_bytes_are_a_recipe_or_a_request_error(data: bytes) -> None:
    with contextlib.suppress(RequestError):
        parse_recipe(data, "D")


WORD = st.sampled_from(
    ["FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "<<EOF", "EOF", "\\", '["a"]', "a=b", "--from=x"]
)


@given(st.lists(st.lists(WORD, min_size=1, max_size=5).map(" ".join), max_size=8))
def test_any_lines_of_its_words_are_a_recipe_or_a_request_error(lines: list[str]) -> None:
    with contextlib.suppress(RequestError):
        parse_recipe("\n".join(lines).encode(), "D")


def test_a_megabyte_of_continued_lines_is_read_in_no_time() -> None:
    begun = time.process_time()
    with pytest.raises(RequestError):
        parse_recipe(b"RUN a" + b"\\\n" * 500_000, "D")
    assert time.process_time() - begun < 5
