"""Code in sessions, by E2B's code interpreter client."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b.exceptions import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox

from .conftest import HAS_PLOTS

KERNEL = Path(__file__).parents[2] / ".venv" / "state" / "kernel"

pytestmark = pytest.mark.skipif(
    not KERNEL.is_dir(),
    reason="no ipykernel was installed for sandboxes (`make setup` does, with a network)",
)


_ASK = "process.exit(require('module').stripTypeScriptTypes ? 0 : 1)"
STRIPS_TYPES = shutil.which("tsc") is not None or (
    shutil.which("node") is not None and subprocess.run(["node", "-e", _ASK]).returncode == 0
)


@pytest.fixture(scope="module")
def box(pointed: None) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(envs={"GIVEN": "1"}, timeout=600)
    yield sandbox
    sandbox.kill()


def test_a_cell_returns_its_last_value_and_its_output(box: Sandbox) -> None:
    run = box.run_code("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert run.text == "42"
    assert run.logs.stdout == ["out\n"]
    assert run.logs.stderr == ["err\n"]


def test_state_stays_from_cell_to_cell_and_cells_are_counted(box: Sandbox) -> None:
    session = box.create_code_context()
    assert box.run_code("x = 1", context=session).execution_count == 1
    run = box.run_code("x + 1", context=session)
    assert (run.text, run.execution_count) == ("2", 2)


def test_an_error_has_its_name_and_traceback(box: Sandbox) -> None:
    error = box.run_code("1 / 0").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in error.traceback


@pytest.mark.parametrize(
    ("code", "kind", "value"),
    [
        ("from IPython.display import HTML; HTML('<b>x</b>')", "html", "<b>x</b>"),
        ("from IPython.display import Markdown; Markdown('# x')", "markdown", "# x"),
        ("from IPython.display import SVG; SVG('<svg></svg>')", "svg", "<svg/>"),
        ("from IPython.display import Latex; Latex('$x$')", "latex", "$x$"),
        ("{'a': [1, None]}", "json", {"a": [1, None]}),
        ("'quoted'", "text", "quoted"),
    ],
)
def test_results_come_in_every_form(box: Sandbox, code: str, kind: str, value: object) -> None:
    (result,) = box.run_code(code).results
    assert getattr(result, kind) == value


def test_a_picture_comes_as_base64(box: Sandbox) -> None:
    code = """
class Picture:
    def _repr_png_(self):
        return b"\\x89PNG fake"
Picture()
"""
    (result,) = box.run_code(code).results
    assert base64.b64decode(result.png) == b"\x89PNG fake"
    assert result.is_main_result


if HAS_PLOTS:

    def test_a_figure_comes_as_a_picture_and_as_what_it_shows(box: Sandbox) -> None:
        code = """
import matplotlib.pyplot as plt
plt.bar(["a", "b"], [1, 2], label="group")
plt.title("Bars")
plt.show()
"""
        (shown,) = box.run_code(code, timeout=110).results
        assert base64.b64decode(shown.png).startswith(b"\x89PNG")
        chart = shown.chart
        assert (chart.type.value, chart.title) == ("bar", "Bars")
        told = [(each.label, each.group, each.value) for each in chart.elements]
        assert told == [("a", "group", 1.0), ("b", "group", 2.0)]


def test_a_table_of_any_pandas_comes_as_columns(box: Sandbox) -> None:
    code = """
class Column(list):
    def to_json(self, **_):
        return str(list(self))
class DataFrame(dict):
    columns = ["a"]
    def to_json(self, **_):
        return "[1]"
DataFrame.__module__ = MODULE
DataFrame(a=Column([1, 2]))
"""
    for module in ("pandas", "pandas.core.frame"):
        (result,) = box.run_code(code.replace("MODULE", repr(module))).results
        assert result.data == {"a": [1, 2]}


if HAS_PLOTS:

    def test_a_picture_that_is_shown_or_saved_is_a_result(box: Sandbox) -> None:
        code = """
from PIL import Image
picture = Image.new("RGB", (4, 4), "red")
picture.show()
picture.save("red.png")
"""
        shown, saved = box.run_code(code).results
        for result in (shown, saved):
            assert base64.b64decode(result.png).startswith(b"\x89PNG")
        assert box.files.get_info("red.png").size > 50


def test_a_cell_breaks_off_when_its_sandbox_is_killed() -> None:
    with Sandbox.create(timeout=120) as one:

        def kill(_: object) -> None:
            one.kill()

        with pytest.raises(TimeoutException, match="sandbox was killed"):
            one.run_code("print('begun')\nimport time; time.sleep(100)", on_stdout=kill, timeout=90)


def test_a_new_session_is_the_last_of_the_list() -> None:
    with Sandbox.create(timeout=120) as one:
        made = one.create_code_context(language="bash")
        listed = one.list_code_contexts()
        assert [each.language for each in listed] == ["python", "javascript", "bash"]
        assert listed[-1].id == made.id


def test_ipython_works(box: Sandbox) -> None:
    assert box.run_code("  y = 2\n  y").text == "2"
    assert "sub" in "".join(box.run_code("!echo sub").logs.stdout)
    assert box.run_code("import asyncio\nawait asyncio.sleep(0)\n'done'").text == "done"
    displayed = box.run_code("from IPython.display import display\ndisplay(1)\ndisplay(2)")
    assert [each.text for each in displayed.results] == ["1", "2"]
    assert not any(each.is_main_result for each in displayed.results)


def test_variables_of_one_cell_are_gone_in_the_next(box: Sandbox) -> None:
    code = "import os; os.environ.get('GIVEN'), os.environ.get('ONCE')"
    assert box.run_code(code, envs={"ONCE": "2", "GIVEN": "other"}).text == "('other', '2')"
    assert box.run_code(code).text == "('1', None)"


def test_sessions_do_not_see_each_other(box: Sandbox) -> None:
    one = box.create_code_context(cwd="/tmp")
    two = box.create_code_context()
    box.run_code("mine = 1", context=one)
    error = box.run_code("mine", context=two).error
    assert error is not None
    assert error.name == "NameError"
    assert box.run_code("import os; os.getcwd()", context=one).text == "/tmp"
    ids = [each.id for each in box.list_code_contexts()]
    assert ids.index(one.id) < ids.index(two.id)


def test_a_restart_forgets_and_a_removal_ends(box: Sandbox) -> None:
    session = box.create_code_context()
    box.run_code("kept = 1", context=session)
    box.restart_code_context(session)
    error = box.run_code("kept", context=session).error
    assert error is not None
    assert error.name == "NameError"
    box.remove_code_context(session)
    with pytest.raises(NotFoundException):
        box.run_code("1", context=session)


def test_a_client_that_leaves_interrupts_its_cell(box: Sandbox) -> None:
    box.run_code("survives = 'yes'")
    with pytest.raises(TimeoutException):
        box.run_code("import time; time.sleep(300)", timeout=0.5)
    assert box.run_code("survives").text == "yes"


def test_a_kernel_that_ends_is_told_and_the_next_cell_has_another(box: Sandbox) -> None:
    session = box.create_code_context()
    run = box.run_code("import os; os._exit(1)", context=session)
    assert run.error is not None
    assert "the kernel has ended" in run.error.value
    assert box.run_code("1", context=session).text == "1"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_javascript_keeps_its_state_too(box: Sandbox) -> None:
    run = box.run_code("const a = 2; console.log('hey'); a * 3", language="js")
    assert (run.text, run.logs.stdout) == ("6", ["hey\n"])
    assert box.run_code("await Promise.resolve(a + 1)", language="javascript").text == "3"
    error = box.run_code("throw new TypeError('bad')", language="js").error
    assert error is not None
    assert (error.name, error.value) == ("TypeError", "bad")


def test_bash_keeps_its_state_too(box: Sandbox) -> None:
    box.run_code("V=5; cd /tmp", language="bash")
    run = box.run_code("echo $V$ONCE; pwd", language="bash", envs={"ONCE": "6"})
    assert "".join(run.logs.stdout) == "56\n/tmp\n"
    assert "".join(box.run_code("echo [$ONCE]", language="bash").logs.stdout) == "[]\n"
    error = box.run_code("false", language="bash").error
    assert error is not None
    assert error.value == "exit status 1"


HAS_R = shutil.which("R") is not None
needs_r = pytest.mark.skipif(not HAS_R, reason="R is not installed")


@needs_r
def test_r_keeps_its_state_too(box: Sandbox) -> None:
    run = box.run_code("a <- 2; cat('é\\n'); message('to err')\na * 3", language="r")
    assert (run.text, run.logs.stdout, run.logs.stderr) == ("[1] 6", ["é\n"], ["to err\n"])
    assert run.results[-1].is_main_result
    run = box.run_code("cat(a, Sys.getenv('GIVEN'), Sys.getenv('ONCE'))", "r", envs={"ONCE": "7"})
    assert "".join(run.logs.stdout) == "2 1 7"
    assert box.run_code("Sys.getenv('ONCE')", language="r").text == '[1] ""'
    session = box.create_code_context(language="r", cwd="/tmp")
    run = box.run_code("cat(getwd()); exists('a')", context=session)
    assert ("".join(run.logs.stdout), run.text) == ("/tmp", "[1] FALSE")


@needs_r
def test_errors_of_r_have_their_text_and_the_session_goes_on(box: Sandbox) -> None:
    code = "before <- 1\nf <- function() stop('no \"good\"')\nf()"
    error = box.run_code(code, language="r").error
    assert error is not None
    assert (error.name, error.value) == ("simpleError", 'no "good"')
    assert "f()" in error.traceback
    error = box.run_code("1 +", language="r").error
    assert error is not None
    run = box.run_code("warning('careful')\nbefore", language="r")
    assert (run.text, run.error) == ("[1] 1", None)
    assert "careful" in "".join(run.logs.stderr)


@needs_r
def test_plots_of_r_come_as_pictures_one_for_each_page(box: Sandbox) -> None:
    shown = box.run_code("plot(1:3)\nhist(c(1, 2, 2))", language="r").results
    assert [base64.b64decode(each.png)[:4] for each in shown if each.png] == [b"\x89PNG"] * 2
    code = "options(jupyter.plot_mimetypes = 'image/svg+xml')\n"
    code += "par(mfrow = c(1, 2)); plot(1); plot(2)"
    shown = [each for each in box.run_code(code, language="r").results if each.svg or each.png]
    assert [each.svg is not None and "<svg" in each.svg for each in shown] == [True]


@needs_r
def test_a_client_that_leaves_interrupts_r(box: Sandbox) -> None:
    box.run_code("survives <- 'yes'", language="r")
    with pytest.raises(TimeoutException):
        box.run_code("Sys.sleep(300)", language="r", timeout=0.5)
    assert box.run_code("survives", language="r").text == '[1] "yes"'


@needs_r
def test_a_line_of_r_that_never_ends_is_not_kept(box: Sandbox) -> None:
    session = box.create_code_context(language="r")
    code = "mark <- environment(getOption('jupyter.base_display_func'))$mark\n"
    code += "cat(mark, '{', sep = ''); for (i in 1:40) cat(strrep('x', 1e6))"
    error = box.run_code(code, context=session).error
    assert error is not None
    assert "the most is 33554432" in error.value
    assert box.run_code("1", context=session).text == "[1] 1"


def test_typescript_runs_where_its_types_can_be_taken_away(box: Sandbox) -> None:
    code = "interface A { n: number }\nconst t: A = { n: 2 }; t.n as number"
    if not STRIPS_TYPES:
        with pytest.raises(SandboxException, match=r"neither node .* nor TypeScript; add one"):
            box.run_code(code, language="ts")
        return
    assert box.run_code(code, language="ts").text == "2"
    assert box.run_code("t.n + 1", language="typescript").text == "3"


def test_a_language_that_is_not_there_is_refused(box: Sandbox) -> None:
    with pytest.raises(SandboxException, match="the languages here are"):
        box.run_code("1", language="cobol")
