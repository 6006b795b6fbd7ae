"""A whole evaluation without a network: a model that follows a script, in real sandboxes.

`eval_program.py LOGS` runs it; `eval_program.py LOGS hang` holds it in the middle of a sample.
"""

from __future__ import annotations

import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import bash, python, text_editor
from inspect_ai.util import sandbox


@scorer(metrics=[accuracy()])
def left_in_the_sandbox():
    """Ask the sandbox itself, not the model."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="C" if await sandbox().read_file("answer") == target.text else "I")

    return score


def script(hang: bool) -> list[ModelOutput]:
    """What the model answers, one after the other; with its usage, or tokens would be counted."""
    command = "echo up > up; sleep 600" if hang else "cat question > answer && cat answer"
    edit = {"command": "create", "path": "/workspace/notes", "file_text": "noted\n"}
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}),
        ModelOutput.for_tool_call("mockllm/model", "python", {"code": "print(6 * 7)"}),
        ModelOutput.for_tool_call("mockllm/model", "text_editor", edit),
        ModelOutput.from_content("mockllm/model", "done"),
    ]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return outputs


def main() -> int:
    """Run it and print what the tools said."""
    task = Task(
        name="copying",
        dataset=[Sample(input="copy it", target="42", files={"question": "42"}, setup="touch s")],
        solver=[use_tools([bash(timeout=60), python(timeout=60), text_editor()]), generate()],
        scorer=left_in_the_sandbox(),
        sandbox="cloister",
    )
    model = get_model("mockllm/model", custom_outputs=script(sys.argv[2:] == ["hang"]))
    (log,) = eval(task, model=model, log_dir=sys.argv[1], display="none")
    if log.status != "success" or log.samples is None or log.results is None:
        print(log.error, log.samples and log.samples[0].error)
        return 1
    for message in log.samples[0].messages:
        if message.role == "tool":
            print(message.text.strip(), message.error or "")
    print("accuracy", log.results.scores[0].metrics["accuracy"].value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
