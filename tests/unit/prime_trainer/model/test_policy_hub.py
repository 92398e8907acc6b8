"""A model is a folder, or a name whose files the hub's own cache has or fetches."""

import shutil
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_trainer.cli import main
from prime_trainer.model.policy import HUB_FILES, PolicyModel, resolve_model
from prime_trainer.model.tiny import make_tiny_checkpoint

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 does, which is read when the library is first imported."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def fill_cache(cache: Path) -> Path:
    """One model as the library keeps it."""
    repository = cache / "models--somebody--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    return make_tiny_checkpoint(repository / "snapshots" / REVISION, hidden=32, layers=1)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path


@pytest.mark.usefixtures("offline")
def test_a_name_is_found_in_the_cache_and_can_be_trained(tmp_path: Path) -> None:
    folder = fill_cache(tmp_path)
    for name in ("somebody/tiny", f"somebody/tiny@{REVISION}"):
        assert resolve_model(Path(name), tmp_path) == folder
    assert PolicyModel.load(resolve_model(Path("somebody/tiny"), tmp_path)).model.num_parameters() > 0


@pytest.mark.usefixtures("offline")
def test_a_name_that_cannot_be_had_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LocalError, match="hf download somebody/tiny"):
        resolve_model(Path("somebody/tiny"), tmp_path)
    with pytest.raises(LocalError, match="not a name on the hub"):
        resolve_model(tmp_path / "missing")
    words = ["--model", "nobody/has-this-model", "--task-set", "sort-digits"]
    assert main(["eval", *words]) == 1
    assert main(["filter", *words, "--out", str(tmp_path / "tasks")]) == 1
    assert main(["sft", *words, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said.count("copy the folder from another machine") == 3


def test_what_is_fetched_is_what_a_run_may_use(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", prompt="{prompt}")
    assert {path.name for path in folder.iterdir() if not any(path.match(each) for each in HUB_FILES)} == set()
    shutil.rmtree(folder)
