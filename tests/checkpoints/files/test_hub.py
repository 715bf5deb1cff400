"""Models of a hub on the loopback: the fetched files, the cache, and every error."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")

import tiny_llama  # noqa: E402
from loopback_hub import Hub, running_hub  # noqa: E402

from posenc import cli  # noqa: E402
from posenc.checkpoints.conversion.convert import ConversionRequest, convert  # noqa: E402
from posenc.checkpoints.extension import report  # noqa: E402
from posenc.checkpoints.files.hub import commit_of, files_to_fetch, is_hub_name  # noqa: E402
from posenc.checkpoints.formats.load import find_checkpoint, load, without_weights  # noqa: E402
from posenc.checkpoints.inspection.inspect import inspect  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

NAME = "team/tiny"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A tiny model, and files that are never fetched."""
    folder = tiny_llama.save(tmp_path_factory.mktemp("made") / "tiny")
    content = {file.name: file.read_bytes() for file in folder.iterdir()}
    extra = ("pytorch_model.bin", "modeling_own.py", "onnx/config.json", "README.md", "training_args.json")
    return content | dict.fromkeys(extra, b"{}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with running_hub(monkeypatch, tmp_path) as hub:
        hub.add_repository(NAME, files)
        yield hub


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_name_is_loaded_and_only_what_it_takes_is_asked_for(hub: Hub, capsys: Any, monkeypatch: Any) -> None:
    checkpoint = load(NAME)
    assert commit_of(checkpoint.path) == hub.commits[NAME]["main"] and checkpoint.tokenizer is not None
    assert hub.requested_files() <= {"config.json", "generation_config.json", "model.safetensors"} | {
        name for name in hub.repositories[NAME] if "token" in name
    }
    message = capsys.readouterr().err
    assert message.startswith("fetching 0.00 GB of weights of team/tiny into ") and "hub" in message
    offline(monkeypatch)
    hub.requests.clear()
    again = load(NAME)
    assert again.path == checkpoint.path and not hub.requests and "fetching" not in capsys.readouterr().err
    assert all(a.equal(b) for a, b in zip(again.model.parameters(), checkpoint.model.parameters(), strict=True))


def test_the_config_alone_is_fetched_where_it_is_enough(hub: Hub) -> None:
    reading = inspect(NAME)
    assert reading.parts[0].layers[0].spec.startswith("rotary")
    assert all(parameter.is_meta for parameter in without_weights(NAME).model.parameters())
    assert hub.requested_files() == {"config.json"}


def test_a_revision_is_that_of_the_name(hub: Hub) -> None:
    assert commit_of(find_checkpoint(f"{NAME}@v1")) == hub.commits[NAME]["main"]
    assert all("/v1/" in path or "/tree/" in path or "/main/" not in path for path in hub.requests)
    with pytest.raises(
        CannotRead, match=rf"^team/tiny@v2: the hub has it, and not this revision; choose .*{NAME}/commits"
    ):
        find_checkpoint(f"{NAME}@v2")


def test_what_the_hub_does_not_have_and_a_licence_that_is_not_accepted_say_what_to_do(hub: Hub) -> None:
    with pytest.raises(CannotRead, match=r"^team/none: there is no such file or folder, and no such model at http"):
        load("team/none")
    hub.gated.add(NAME)
    with pytest.raises(CannotRead, match=rf"accepted .*; accept it at {hub.endpoint}/{NAME}, then run `hf auth login`"):
        load(NAME)


def test_offline_the_cache_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect(NAME)
    offline(monkeypatch)
    assert inspect(NAME).parts
    cache = huggingface_hub.constants.HF_HUB_CACHE
    with pytest.raises(CannotRead, match=rf"not reached .*the cache {cache} does not hold its weights; give another"):
        load(NAME)
    with pytest.raises(CannotRead, match=r"does not hold its config; .* without HF_HUB_OFFLINE"):
        inspect("team/other")


def test_offline_several_gguf_files_are_named_as_they_are_online(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add_repository("team/two", {"m-Q4_K_M.gguf": b"GGUF", "m-Q8_0.gguf": b"GGUF"})
    for word in ("q4", "q8"):
        find_checkpoint(f"team/two:{word}")
    offline(monkeypatch)
    assert find_checkpoint("team/two:q8").name == "m-Q8_0.gguf"
    with pytest.raises(CannotRead, match=r"several GGUF files \(m-Q4_K_M.gguf, m-Q8_0.gguf\); give team/two:WORD"):
        find_checkpoint("team/two")
    with pytest.raises(CannotRead, match=r"the cache .* does not hold its weights"):
        find_checkpoint("team/two:q2")


def test_a_hub_that_is_gone_is_no_loss_of_what_the_cache_holds(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = load(NAME).path
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert load(NAME).path == path


def test_a_download_that_breaks_off_says_so_and_the_same_call_completes_it(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    # huggingface_hub waits before a retry.
    monkeypatch.setattr("time.sleep", lambda _: None)
    hub.cut["model.safetensors"] = 100
    words = r"team/tiny: its download broke off \(.*run the same again, and it goes on where it stopped"
    with pytest.raises(CannotRead, match=words):
        load(NAME)
    hub.cut.clear()
    assert load(NAME).path.joinpath("model.safetensors").read_bytes() == hub.repositories[NAME]["model.safetensors"]


def test_shards_come_by_their_index_and_a_file_beside_them_does_not(hub: Hub, tmp_path: Path, files: Any) -> None:
    folder = convert(NAME, tmp_path / "shards", ConversionRequest(layout="interleaved"), shard_bytes=20_000)
    assert folder.commit == hub.commits[NAME]["main"]
    shards = {file.name: file.read_bytes() for file in folder.folder.iterdir()}
    hub.add_repository("team/shards", {**shards, "consolidated.safetensors": files["model.safetensors"]})
    hub.requests.clear()
    assert len(load("team/shards").path.joinpath("model.safetensors.index.json").read_bytes())
    names = hub.requested_files()
    assert "consolidated.safetensors" not in names and sum("-of-" in name for name in names) > 1


def test_a_file_without_weights_is_bounded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenc.checkpoints.files.hub.MOST_BYTES", 10)
    with pytest.raises(CannotRead, match=r"team/tiny: config.json: it has [\d,]+ bytes, and at most 10 are fetched"):
        load(NAME)


def test_a_path_that_exists_goes_first_and_one_with_a_dot_is_never_a_name(hub: Hub, files: dict[str, bytes]) -> None:
    for path in ("./team/tiny", Path(NAME), "team/tiny/more", "tiny"):
        with pytest.raises(CannotRead, match="there is no file or folder"):
            find_checkpoint(path)
    Path(NAME).mkdir(parents=True)
    assert find_checkpoint(NAME) == Path(NAME) and not hub.requests


def test_which_texts_are_names() -> None:
    names = "a/b", "a/b@main", "a/b@refs/pr/1", "a/b:Q4_K_M", "a/b@v1:x.gguf", "HuggingFaceTB/SmolLM2-1.7B"
    assert all(map(is_hub_name, names))
    paths = "a", "/a/b", "a/b/c", "./a", "../a", "~/a", "a\\b/c", "a/b@", "a/b:", "", "C:/a b"
    assert not any(map(is_hub_name, paths))


def test_of_several_gguf_files_a_word_names_one() -> None:
    ggufs = ["config.json", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]
    assert files_to_fetch("a/b", ggufs, "q8", True) == ["m-Q8_0.gguf"]
    assert files_to_fetch("a/b", ggufs, None, False) == ["config.json"]
    with pytest.raises(
        CannotRead, match=r"several GGUF files \(m-Q4_K_M.gguf, m-Q8_0.gguf\); give a/b:WORD, a word of"
    ):
        files_to_fetch("a/b", ggufs, None, True)
    with pytest.raises(CannotRead, match="no GGUF file with 'q2' in its name"):
        files_to_fetch("a/b", ggufs, "q2", True)
    with pytest.raises(CannotRead, match="no safetensors and no GGUF file; pickles are never fetched"):
        files_to_fetch("a/b", ["config.json", "pytorch_model.bin"], None, True)


def test_without_huggingface_hub_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CannotRead, match=r"a/b: there is no such file or folder, .* `pip install 'posenc\[hf\]'`"):
        inspect("a/b")


def test_verbs_take_a_name_and_say_its_commit(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures are slow.
    monkeypatch.setattr(report, "write", lambda record, folder: folder / "report.html")
    for command in (["inspect", NAME], ["convert", NAME, "--out", "new", "--layout", "interleaved"]):
        assert cli.main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["commit"] == hub.commits[NAME]["main"]
    text = tmp_path / "text.txt"
    text.write_text(tiny_llama.TEXT)
    options = "--method ntk --measures perplexity --start 0 --out run"
    assert cli.main(["extend", NAME, "--text", str(text), *options.split()]) == 0
    origin = json.loads(Path("run/record.json").read_text())["made"]
    assert origin["model, commit of the hub"] == hub.commits[NAME]["main"]
    assert cli.main(["extend", NAME, "--plan"]) == 0
