"""KVM is used where a machine has booted with it, and what was found is said and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.errors import GuestGone, RequestError, Unsupported
from cloister.runtime.microvm import accelerator
from cloister.runtime.microvm.accelerator import SETTING, Accelerator, Accelerators


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLOISTER_MICROVM", str(tmp_path))
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(accelerator, "DEVICE", Path("/dev/null"))
    monkeypatch.setattr(accelerator, "_verdict_name", lambda: "kvm-here")


class Proof:
    """A machine that boots, or that hangs until its time is over."""

    def __init__(self, *, boots: bool) -> None:
        self._boots = boots
        self.count = 0

    async def __call__(self) -> None:
        self.count += 1
        if not self._boots:
            raise GuestGone("the guest did not report within the time", reason="hung")


@pytest.mark.parametrize("boots", [True, False])
async def test_a_machine_is_booted_once_and_its_word_is_kept(boots: bool) -> None:
    proof = Proof(boots=boots)
    for _ in range(2):
        accelerators = Accelerators(proof)
        found = [await accelerators.choose() for _ in range(2)]
        assert found[0] == found[1]
    assert proof.count == 1
    assert found[0].name == ("kvm" if boots else "tcg")
    assert boots == (found[0].kvm == "works")
    assert boots or "did not report within the time" in found[0].kvm


async def test_kvm_that_is_asked_for_by_name_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SETTING, "kvm")
    with pytest.raises(Unsupported, match="did not report within the time"):
        await Accelerators(Proof(boots=False)).choose()


async def test_kvm_that_is_asked_for_by_name_is_used_where_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SETTING, "kvm")
    assert await Accelerators(Proof(boots=True)).choose() == Accelerator("kvm", "works")


async def test_a_host_without_the_device_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    for path, why in ((tmp_path / "missing", "there is no"), (plain, "is no device")):
        monkeypatch.setattr(accelerator, "DEVICE", path)
        proof = Proof(boots=True)
        found = await Accelerators(proof).choose()
        assert (found.name, proof.count) == ("tcg", 0) and why in found.kvm
        monkeypatch.setenv(SETTING, "kvm")
        with pytest.raises(Unsupported, match=why):
            await Accelerators(proof).choose()
        monkeypatch.delenv(SETTING)


async def test_nothing_is_tried_where_emulation_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SETTING, "tcg")
    proof = Proof(boots=True)
    assert (await Accelerators(proof).choose()).name == "tcg"
    assert proof.count == 0


async def test_a_word_that_is_none_of_the_three_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "xen")
    with pytest.raises(RequestError, match="auto, kvm or tcg"):
        await Accelerators(Proof(boots=True)).choose()
