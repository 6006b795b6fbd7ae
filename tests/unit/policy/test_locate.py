"""The locator finds every key tomllib finds, on the line where a person wrote it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import PolicyError
from cloister.policy.locate import MAXIMUM_DEPTH, KeyPath, locate_keys

DOCUMENT = '''\
# a = 1
trust = "internal" # [x]
text = """
not = "a key"
[nor.this]
\\""" nor = 1 """"
literal = \'\'\'
[[no]]\'\'\'

[limits]
  memory = "1GiB"
"pi\\u0064s" = 3
a.'b c' . d = 1979-05-27 07:32:00 # dotted
[[mount]]
source = "a#b]"
list = [
  1, # one, [two]
  { x = 1, y = { z = [ "," ] } },
]

[[mount]]
source = 'c:\\'
[mount.inner]
key = true
[[mount.deep]]
one = 1
[[mount.deep]]
two = {}
'''


def test_each_key_is_found_on_its_line() -> None:
    lines = locate_keys(DOCUMENT, "here")
    expected: dict[KeyPath, int] = {
        ("trust",): 2,
        ("text",): 3,
        ("literal",): 7,
        ("limits",): 10,
        ("limits", "memory"): 11,
        ("limits", "pids"): 12,
        ("limits", "a"): 13,
        ("limits", "a", "b c"): 13,
        ("limits", "a", "b c", "d"): 13,
        ("mount",): 14,
        ("mount", 0): 14,
        ("mount", 0, "source"): 15,
        ("mount", 0, "list"): 16,
        ("mount", 0, "list", 0): 17,
        ("mount", 0, "list", 1): 18,
        ("mount", 0, "list", 1, "x"): 18,
        ("mount", 0, "list", 1, "y"): 18,
        ("mount", 0, "list", 1, "y", "z"): 18,
        ("mount", 0, "list", 1, "y", "z", 0): 18,
        ("mount", 1): 21,
        ("mount", 1, "source"): 22,
        ("mount", 1, "inner"): 23,
        ("mount", 1, "inner", "key"): 24,
        ("mount", 1, "deep"): 25,
        ("mount", 1, "deep", 0): 25,
        ("mount", 1, "deep", 0, "one"): 26,
        ("mount", 1, "deep", 1): 27,
        ("mount", 1, "deep", 1, "two"): 28,
    }
    assert lines == expected
    assert set(lines) == set(paths(tomllib.loads(DOCUMENT)))


def test_windows_line_ends_count_once() -> None:
    assert locate_keys("a = 1\r\nb = 2\r\n", "here") == {("a",): 1, ("b",): 2}


@pytest.mark.parametrize("text", ["a = ", "a", "= 1", "[", "[a", 'a = "', "a = [1", "a = {b", "\0"])
def test_what_is_not_toml_stops_the_search_quietly(text: str) -> None:
    assert locate_keys("first = 1\n" + text, "here")[("first",)] == 1


@pytest.mark.parametrize(
    "shape",
    [
        lambda depth: "a = " + "[" * depth + "]" * depth,
        lambda depth: "a = " + "{a = " * depth + "1" + "}" * depth,
        lambda depth: ".".join("a" * depth) + " = 1",
        lambda depth: "[" + ".".join("a" * depth) + "]",
    ],
    ids=["arrays", "tables", "dotted", "header"],
)
def test_nesting_is_bounded(shape: object) -> None:
    assert callable(shape)
    assert locate_keys(shape(MAXIMUM_DEPTH), "here")
    for depth in (MAXIMUM_DEPTH + 2, 100_000):
        with pytest.raises(PolicyError, match="nested deeper") as caught:
            locate_keys("\n" + shape(depth), "here")
        assert caught.value.place == "here:2"


def paths(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths(inner, (*path, index))


characters = st.sampled_from("ab\"'\\#[]{}=,.\n\t ü")
raw_text = st.text(characters, max_size=8)
spaces = st.sampled_from(["", " ", "\t", "  "])


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" if c in '"\\\n' else c for c in text)


strings = st.one_of(
    raw_text.map(lambda text: f'"{escaped(text)}"'),
    raw_text.map(lambda text: f'"""{text.replace(chr(92), "").replace(chr(34) * 3, "")} """'),
    raw_text.map(lambda text: "'" + text.replace("'", "").replace("\n", "") + "'"),
    raw_text.map(lambda text: f"'''{text.replace(chr(39) * 3, '')} '''"),
    st.sampled_from(['""', '""""""', '""""a"""""', "''''a'''''", '"""\\"""a"""']),
)
scalars = strings | st.sampled_from(["1", "0x1f", "-1.5e3", "true", "inf", "1979-05-27 07:32:00Z"])
keys = st.text("abc-_1", min_size=1, max_size=3) | raw_text.map(lambda text: f'"{escaped(text)}"')


def array(items: list[tuple[str, str]], end: str) -> str:
    return "[" + ", # ] }\n ".join(before + item for before, item in items) + end + "]"


def inline_table(pairs: dict[str, str], space: str) -> str:
    body = ",".join(f"{space}{key}{space}={space}{value}{space}" for key, value in pairs.items())
    return "{" + body + "}"


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(
            array,
            st.lists(st.tuples(st.sampled_from(["", " ", "\n", "#x\n"]), inner), max_size=3),
            st.sampled_from(["", "\n", " "]),
        ),
        st.builds(inline_table, st.dictionaries(keys, inner, max_size=3), spaces),
    ),
    max_leaves=6,
)
dotted_keys = st.lists(keys, min_size=1, max_size=3).map(" . ".join)
statements = st.one_of(
    st.tuples(spaces, dotted_keys, spaces, values).map(lambda p: f"{p[0]}{p[1]} ={p[2]}{p[3]}"),
    dotted_keys.map(lambda key: f"[ {key} ]"),
    dotted_keys.map(lambda key: f"[[{key}]] # ]]"),
    st.sampled_from(["", "# comment = 1", "\t"]),
)


@given(st.lists(statements, max_size=8).map("\n".join))
def test_the_keys_found_are_those_of_tomllib(text: str) -> None:
    lines = locate_keys(text, "here")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(lines) == set(paths(table))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@given(st.text(characters | st.characters()))
def test_no_text_raises_anything_but_a_policy_error(text: str) -> None:
    try:
        locate_keys(text, "here")
    except PolicyError as error:
        assert "nested" in str(error)
