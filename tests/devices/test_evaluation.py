"""Evaluation of embeddings that are on the device: there, with one transfer per block, and the results of the CPU."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from metrix import evaluate
from metrix.core.compute import device_memory
from metrix.errors import EmbeddingError
from metrix.evaluate.bootstrap import numpy_generator
from metrix.evaluate.on_device import DeviceVectors
from metrix.evaluate.vectors import Vectors
from metrix.runs import evaluation, trained_model
from metrix.runs.embedding_blocks import BLOCK
from metrix.runs.evaluation import Examples, embed_examples, evaluate_examples
from metrix.runs.trained_model import open_run
from tests.devices.pretended_cuda import PretendedCuda
from tests.trained_runs import train_tiny

KS = (1, 2, 4, 100)


def random(n, dim, seed=0):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def copies_and_near_ties():
    """Copies of vectors, a vector that differs in the last bit, and scaled ones."""
    x = random(6, 8).repeat(5, 1)
    x[7] *= 3.0
    x[13, 0] = torch.nextafter(x[13, 0], torch.tensor(9.0))
    return x


CASES = {
    "random": (random(60, 16), torch.arange(60) % 7),
    "singletons": (random(12, 4), torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 7])),
    "two": (random(2, 3), torch.tensor([0, 0])),
    "one class": (random(9, 3), torch.zeros(9, dtype=torch.int64)),
    "ties": (copies_and_near_ties(), torch.arange(30) % 4),
    "collapsed": (torch.ones(20, 4), torch.arange(20) % 3),
    "float64": (random(30, 5).double(), torch.arange(30) % 5),
    "bfloat16": (random(30, 5).bfloat16(), torch.arange(30) % 5),
    "float16": (random(30, 5).half(), torch.arange(30) % 5),
}


def assert_equal(found, expected):
    assert (found.left_out, found.gallery_size) == (expected.left_out, expected.gallery_size)
    assert found.intervals == expected.intervals
    for name, values in expected.per_query.items():
        np.testing.assert_array_equal(found.per_query[name], values, err_msg=name)
    for name in ("own", "found", "counts"):  # classes that are confused
        np.testing.assert_array_equal(getattr(found.confusion, name), getattr(expected.confusion, name), err_msg=name)


@pytest.mark.parametrize("free", [2**33, 2**16], ids=["one block", "blocks"])
@pytest.mark.parametrize("case", CASES)
def test_the_metrics_of_retrieval_are_those_of_the_cpu(case, free, monkeypatch):
    monkeypatch.setattr(device_memory, "ASSUMED", free)
    x, labels = CASES[case]
    expected = evaluate.retrieval(x, labels, KS, confusion=True)
    recall = evaluate.recall_at_k(x, labels, KS)
    with PretendedCuda() as device:
        assert_equal(evaluate.retrieval(device.put(x), device.put(labels), KS, confusion=True), expected)
        assert evaluate.recall_at_k(device.put(x), labels, KS) == recall


@pytest.mark.parametrize("free", [2**33, 2**16], ids=["one block", "blocks"])
def test_queries_against_a_gallery(free, monkeypatch):
    monkeypatch.setattr(device_memory, "ASSUMED", free)
    queries, gallery = copies_and_near_ties(), torch.cat([copies_and_near_ties(), random(40, 8, seed=1)])
    labels, known = torch.arange(30) % 4, torch.arange(70) % 4
    expected = evaluate.retrieval(queries, labels, KS, gallery, known, confusion=True)
    with PretendedCuda() as device:
        for given in (device.put(queries), queries):
            found = evaluate.retrieval(given, labels, KS, device.put(gallery), known, confusion=True)
            assert_equal(found, expected)


@pytest.mark.parametrize("free", [2**33, 2**16], ids=["one block", "blocks"])
@pytest.mark.parametrize("separate", [False, True], ids=["all against all", "gallery"])
def test_a_querys_own_sequence_is_left_out_as_on_the_cpu(separate, free, monkeypatch):
    monkeypatch.setattr(device_memory, "ASSUMED", free)
    x, labels = copies_and_near_ties(), torch.arange(30) % 4
    tracks = [None if n % 5 == 0 else f"track {n % 3}" for n in range(30)]
    others = {"gallery": x, "gallery_labels": labels, "gallery_sequences": tracks} if separate else {}
    expected = evaluate.retrieval(x, labels, KS, confusion=True, sequences=tracks, **others)
    assert expected.means != evaluate.retrieval(x, labels, KS).means
    monkeypatch.setattr(DeviceVectors, "values", property(lambda self: pytest.fail("copied to the host")))
    with PretendedCuda() as device:
        there = {**others, "gallery": device.put(x)} if separate else {}
        assert_equal(evaluate.retrieval(device.put(x), labels, KS, confusion=True, sequences=tracks, **there), expected)


def test_embeddings_stay_on_the_device_with_one_transfer_per_block(monkeypatch):
    x, labels = random(400, 16), torch.arange(400) % 40
    monkeypatch.setattr(device_memory, "ASSUMED", 4 * 128 * 400 * 100)  # room for 100 of 400 queries
    monkeypatch.setattr(DeviceVectors, "values", property(lambda self: pytest.fail("copied to the host")))
    with PretendedCuda() as device:
        there = device.put(x)
        device.reset()
        evaluate.retrieval(there, labels, KS)
        assert device.synchronisations.total() <= 1 + 4, device.synchronisations
        assert device.copies.total() <= 3, device.copies  # the classes of queries and gallery, and the queries
        assert device.launches.total() <= 20 + 4 * 35, device.launches


def test_the_result_does_not_depend_on_tensorfloat32(monkeypatch):
    """The products are in float64, which has no such mode."""
    seen = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **given: seen.append(a.dtype) or product(a, b, **given))
    with PretendedCuda() as device:
        evaluate.recall_at_k(device.put(random(20, 4)), torch.arange(20) % 3)
    assert set(seen) == {torch.float64}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_bad_rows_are_refused_in_the_words_of_the_cpu(value):
    x = random(6, 3)
    x[4] = value
    with pytest.raises(EmbeddingError) as here:
        evaluate.recall_at_k(x, [0, 0, 1, 1, 2, 2])
    with PretendedCuda() as device, pytest.raises(EmbeddingError) as there:
        evaluate.recall_at_k(device.put(x), [0, 0, 1, 1, 2, 2])
    assert str(there.value) == str(here.value)


def test_a_device_without_float64_is_measured_on_the_host(monkeypatch):
    """MPS: its tensors do not say that they are on CUDA."""
    x, labels = CASES["random"]
    with PretendedCuda(double=False) as device:
        there = device.put(x)
        monkeypatch.setattr(type(there), "is_cuda", False)
        assert evaluate.recall_at_k(there, labels, KS) == evaluate.recall_at_k(x, labels, KS)
        assert type(Vectors.read(there)) is Vectors


def test_other_metrics_take_embeddings_on_the_device():
    x, labels = CASES["random"]
    with PretendedCuda() as device:
        there = device.put(x)
        assert evaluate.alignment(there, labels) == evaluate.alignment(x, labels)
        assert evaluate.uniformity(there) == evaluate.uniformity(x)
        assert evaluate.utilization(there, there) == evaluate.utilization(x, x)


@pytest.mark.parametrize("separate", [False, True], ids=["all against all", "gallery"])
def test_metrix_evaluate_measures_on_the_gpu(separate, monkeypatch):
    x, labels = random(90, 16).numpy(), (torch.arange(90) % 7).numpy()
    examples = Examples(x[:30], labels[:30], x[30:], labels[30:]) if separate else Examples(x, labels)
    expected = evaluate_examples(examples, clustered=False, per_class=True).retrieval
    monkeypatch.setattr(evaluation, "choose_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(DeviceVectors, "values", property(lambda self: pytest.fail("copied to the host")))
    with PretendedCuda() as device:
        assert_equal(evaluate_examples(examples, clustered=False, per_class=True).retrieval, expected)
        assert device.copies.total() > 0, "nothing was on the device"


def test_a_run_is_embedded_and_measured_on_the_gpu(tmp_path, monkeypatch):
    here = train_tiny(tmp_path / "here", max_steps=2)
    there = shutil.copytree(here, tmp_path / "there")  # without embeddings that it would use again
    expected = evaluate_examples(embed_examples(open_run(here)), clustered=False, per_class=True).retrieval
    for module in (trained_model, evaluation):
        monkeypatch.setattr(module, "choose_device", lambda: torch.device("cuda", 0))
    # in inference mode, the pretended device does not see the parts that operations are composed of
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)
    with PretendedCuda() as device:
        examples = embed_examples(open_run(there))
        blocks = -(-len(examples.vectors) // BLOCK)
        assert device.synchronisations.total() == blocks, device.synchronisations  # embeddings to be kept in a file
        assert_equal(evaluate_examples(examples, clustered=False, per_class=True).retrieval, expected)


def test_embeddings_that_do_not_fit_are_measured_on_the_host(monkeypatch):
    x, labels = random(30, 4).numpy(), (torch.arange(30) % 7).numpy()
    monkeypatch.setattr(evaluation, "choose_device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(device_memory, "ASSUMED", x.nbytes)
    with PretendedCuda() as device:
        evaluate_examples(Examples(x, labels), clustered=False)
        assert device.copies.total() == 0, device.copies


def test_a_generator_of_the_device_seeds_the_bootstrap(monkeypatch):
    generator = SimpleNamespace(device=torch.device("cuda", 0))  # a real one needs a real device
    asked = []
    monkeypatch.setattr(torch, "randint", lambda *_, device="cpu", **__: asked.append(device) or torch.tensor(5))
    numpy_generator(generator)
    assert asked == [generator.device]
