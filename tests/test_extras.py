"""Without an optional package, what needs it says in one line which extra installs it, before any work."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from metrix.errors import MetrixError
from metrix.extras import EXTRAS, MissingExtra, has_extra, import_extra, require_extra
from tests.photos import write_photos

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).parents[1]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch):
    """`without("faiss")`: as if the package was not installed."""

    def block(name: str) -> None:
        for module in [module for module in sys.modules if module.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)

    return block


def test_a_missing_package_is_an_error_that_names_the_extra(without) -> None:
    without("faiss")
    assert not has_extra("faiss")
    with pytest.raises(MissingExtra, match=re.escape("run pip install 'metrix[search]'")) as caught:
        import_extra("faiss")
    assert isinstance(caught.value, MetrixError)
    assert isinstance(caught.value, ImportError)


def test_several_missing_packages(without) -> None:
    without("faiss")
    without("matplotlib")
    with pytest.raises(MissingExtra, match=re.escape("packages matplotlib, faiss, which are")) as caught:
        require_extra("matplotlib", "numpy", "faiss")
    assert "metrix[report,search]" in str(caught.value)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, run: Path) -> Path:
    """A folder with run/, photos/ and photos.index."""
    from metrix.retrieve.indexing import index_images
    from metrix.runs.trained_model import open_run

    folder = tmp_path_factory.mktemp("extras")
    shutil.copytree(run, folder / "run")
    write_photos(folder / "photos")
    index_images(open_run(folder / "run"), [folder / "photos"], folder / "photos.index")
    return folder


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("faiss", "index run photos -o new.index", "search"),
        ("faiss", "search photos.index --id 'kind 0/1.jpg'", "search"),
        ("faiss", "evaluate run --clustering", "search"),
        ("matplotlib", "report run", "report"),
        ("matplotlib", "analyze positivity run", "report"),
        ("matplotlib", "threshold run --far 0.01", "report"),
        ("matplotlib", "reproduce positivity --quick", "report"),
        ("optuna", "reproduce reality-check --trials 2", "tune"),
        ("onnx", "export run --onnx new.onnx", "onnx"),
        ("fastapi", "serve photos.index", "serve"),
        ("fastapi", "explore run", "serve"),
        ("pymilvus", "index run photos -o m.index --store milvus:./m.db", "milvus"),
    ],
)
def test_commands(
    package: str, command: str, extra: str, without, refused, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    without(package)
    refused(*shlex.split(command), words=(package, f"pip install 'metrix[{extra}]'"))


def test_training_needs_no_extra(tmp_path: Path, cache_folder: Path) -> None:
    """The whole of `metrix train` and `metrix evaluate` in a process that can import no optional package."""
    code = f"""
        import sys
        for name in {sorted(EXTRAS)}:
            sys.modules[name] = None
        from tests.photos import write_photos
        from pathlib import Path
        write_photos(Path("photos"), classes=8)
        from metrix.cli.app import main
        for command in ("train photos --backbone resnet18 --weights random --image-size 32 --dim 8 --max-steps 2 "
                        "--batch-size 8 --per-class 2 -o run --workers 0", "evaluate run", "embed run photos -o vectors.parquet"):
            sys.argv = ["metrix", *command.split()]
            try:
                main()
            except SystemExit as stopped:
                assert not stopped.code, command
        assert not Path("run/tensorboard").exists()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "METRIX_CACHE": str(cache_folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Recall@1" in done.stdout


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_the_table_is_that_of_pyproject() -> None:
    """Each module of the table belongs to a package of that extra, and no package of an extra is in the base install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    normal = re.compile(r"[-_.]+")
    packages = importlib.metadata.packages_distributions()

    def names(requirements: list[str]) -> set[str]:
        found = {re.match(r"[\w.-]+", one)[0] for one in requirements}  # type: ignore[index]
        return {normal.sub("-", one).lower() for one in found}

    base = names(project["dependencies"])
    # make wheel-test installs not all extras
    modules = [module for module in EXTRAS if module in packages]
    if "METRIX_WHEEL" not in os.environ:
        assert {*EXTRAS} == {*modules}
    assert "faiss" in modules
    for module, extra in ((module, EXTRAS[module]) for module in modules):
        of_extra = names(project["optional-dependencies"][extra])
        distributions = {normal.sub("-", one).lower() for one in packages[module]}
        assert distributions & of_extra, f"{module} is not in the extra {extra}"
        assert not distributions & base, f"{module} is in the base install"
