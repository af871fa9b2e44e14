"""What is published: the wheel and the source distribution are complete, and files that name a version agree."""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import metrix

ROOT = Path(__file__).parents[1]


def tracked(*folders: str) -> list[str]:
    """The files of the repository, without what others have left in its folders."""
    skipped = ("__pycache__", ".egg-info")
    return [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and not any(part in path.as_posix() for part in skipped)
    ]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution, built from a copy of the repository."""
    if "METRIX_WHEEL" in os.environ:
        pytest.skip("the installed wheel itself is being tested")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_the_wheel_has_every_file_of_the_package(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
    expected = {name.removeprefix("src/") for name in tracked("src/metrix")}
    assert expected - names == set()
    assert "metrix/explore/static/index.html" in names
    assert {name for name in names if not name.startswith("metrix")} == set()


def test_the_source_distribution_can_be_built_from(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as source:
        names = {name.split("/", 1)[-1] for name in source.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", *tracked("src/metrix")} - names == set()


def test_the_metadata_is_accepted(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_metadata_names_version_and_extras(built: Path) -> None:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Version"] == metrix.__version__
    extras = {"search", "report", "serve", "onnx", "milvus", "lite", "heic", "docs", "tensorboard"}
    assert extras <= set(metadata.get_all("Provides-Extra"))
    assert "pytorch.org" not in str(metadata)


def test_the_same_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == metrix.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == metrix.__version__


def test_the_citation_is_complete() -> None:
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["preferred-citation"]
    assert paper["title"].startswith("It Takes Two to Tango")
    assert len(paper["authors"]) == 6
    assert all({"family-names", "given-names"} == set(author) for author in paper["authors"])


def test_pins_have_the_python_versions_that_they_support() -> None:
    """Every pin whose release needs Python 3.11 says so, since metrix itself promises 3.10."""
    wrong = []
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        pin = Requirement(line)
        try:
            found = importlib.metadata.distribution(pin.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not pin.specifier.contains(found.version):
            continue
        from packaging.specifiers import SpecifierSet

        supports = SpecifierSet(found.metadata.get("Requires-Python") or "").contains("3.10.12")
        applies = pin.marker is None or pin.marker.evaluate({"python_version": "3.10"})
        if applies and not supports:
            wrong.append(line)
    assert wrong == []


def test_ci_runs_on_every_promised_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert versions == re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    assert f'requires-python = ">={versions[0]}"' in text
    assert any(step.get("run") == ".ci/run" for step in workflow["jobs"]["test"]["steps"])
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_the_container_files() -> None:
    """The Dockerfile has no fault that hadolint knows, copies only what .dockerignore lets through, and has the stages."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert {"cpu", "gpu", "serve", "dev"} <= set(stages)
    service = text.partition(" AS serve\n")[2].partition("\nFROM ")[0]
    assert "EXPOSE 8000" in service
    assert re.search(r"^HEALTHCHECK .*\n.*/readyz", service, re.MULTILINE)
    assert stages[-1] == "cpu"  # what docker build makes without --target
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert set(copied) <= set(let_through)
    assert all((ROOT / name).exists() for name in copied)
    extras = set(re.search(r"metrix-\*\.whl\)\[([\w,]+)\]", text)[1].split(","))  # type: ignore[index]
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE))
    assert extras <= known
    editor = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert editor["build"]["target"] in stages


@pytest.mark.skipif(shutil.which("hadolint", path=str(Path(sys.executable).parent)) is None, reason="no hadolint here")
def test_the_dockerfile_has_no_known_fault() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([str(hadolint), str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif("METRIX_WHEEL" not in os.environ, reason="only in make wheel-test")
def test_the_installed_wheel_is_what_is_tested() -> None:
    assert "site-packages" in metrix.__file__
    assert importlib.metadata.version("metrix") == metrix.__version__
