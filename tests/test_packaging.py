"""What is installed: built from a clean copy, installed elsewhere, imported from elsewhere."""

import email
import email.message
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import kfit

ROOT = Path(__file__).parents[1]
NOT_SOURCE = shutil.ignore_patterns(
    ".*_cache", ".git", "*.egg-info", "*venv", "build", "dist", "__pycache__"
)


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Runs a command and returns what it printed; its error output is part of a failure."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=os.environ | env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the sdist, and the wheel built from that sdist alone."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, source, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist):
    """A folder that the wheel, and nothing else, is installed in."""
    target = dist / "target"
    [wheel] = dist.glob("*.whl")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
        *("--target", target, wheel),
        cwd=dist,
    )
    return target


def python(code: str, installed: Path, cwd: Path) -> str:
    """Runs code that sees the installed wheel first, from a folder without kfit's sources."""
    return run(sys.executable, "-c", code, cwd=cwd, PYTHONPATH=str(installed)).strip()


def test_nothing_is_installed_under_a_plain_name(installed):
    names = {path.name.split("-")[0] for path in installed.iterdir() if path.name != "bin"}
    assert names == {"kfit"}
    assert not (installed / "callbacks").exists()
    assert not (installed / "datasets").exists()


def test_every_source_file_is_installed(installed):
    for package, folder in {
        "kfit": "kfit",
        "kfit/callbacks": "callbacks",
        "kfit/datasets": "datasets",
    }.items():
        for path in (ROOT / folder).rglob("*.py"):
            assert (installed / package / path.relative_to(ROOT / folder)).exists(), path
    assert (installed / "kfit" / "py.typed").exists()
    assert (installed / "kfit" / "datasets" / "digits.md").exists()


def test_the_wheel_imports_from_elsewhere(installed, tmp_path):
    code = """
import kfit, kfit.callbacks, kfit.datasets
from kfit.datasets import digits
(x, _), (x_test, _) = digits.load_data()
print(kfit.__version__, len(x), len(x_test))
for module in (kfit, kfit.callbacks, kfit.datasets, digits):
    print(module.__file__)
"""
    first, *files = python(code, installed, tmp_path).splitlines()
    assert first.split()[1:] == ["1497", "300"]
    assert all(file.startswith(str(installed)) for file in files)


def test_everything_imports_at_the_root_of_the_sources(installed):
    """There the folder `kfit/` comes before what is installed."""
    code = "import kfit.callbacks, kfit.datasets; print(kfit.callbacks.__file__)"
    assert python(code, installed, ROOT) == str(ROOT / "kfit" / "callbacks" / "__init__.py")


def test_the_version_is_the_same_everywhere(installed, tmp_path):
    [info] = installed.glob("kfit-*.dist-info")
    version = python("import kfit; print(kfit.__version__)", installed, tmp_path)
    assert info.name == f"kfit-{version}.dist-info"


def test_the_metadata_name_the_licences_of_the_code_and_of_the_digits(installed):
    [info] = installed.glob("kfit-*.dist-info")
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0"
    assert metadata.get_all("License-File") == ["LICENSE", "datasets/digits.md"]
    notice = (info / "licenses" / "datasets" / "digits.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in notice


def links_of(metadata: email.message.Message) -> list[str]:
    """The targets of the links and pictures of the text that PyPI shows."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = re.sub(r"^```.*?^```$", "", str(metadata.get_payload()), flags=re.M | re.S)
    return re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'\b(?:src|srcset)="([^"]+)"', text)


def test_the_text_for_pypi_has_no_relative_link(installed):
    [info] = installed.glob("kfit-*.dist-info")
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert [link for link in links_of(metadata) if not link.startswith("https://")] == []
    assert "callbacks=[backup])" in metadata.get_payload()


def metadata_with(version: str, source: str, folder: Path) -> email.message.Message:
    """The metadata of a package whose sources are published somewhere, or nowhere."""
    for name in ("setup.py", "README.md", "LICENSE", "datasets/digits.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = re.sub(r"^\[project.urls\]\n(.+\n)*", "", project, flags=re.M)
    project += f'\n[project.urls]\nSource = "{source}"\n' if source else ""
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    package = (ROOT / "kfit" / "__init__.py").read_text(encoding="utf-8")
    package = package.replace(f'__version__ = "{kfit.__version__}"', f'__version__ = "{version}"')
    (folder / "kfit").mkdir()
    (folder / "kfit" / "__init__.py").write_text(package, encoding="utf-8")
    code = "import setuptools.build_meta as build; build.prepare_metadata_for_build_wheel('.')"
    run(sys.executable, "-c", code, cwd=folder)
    [file] = folder.glob("*.dist-info/METADATA")
    return email.message_from_string(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("version", "revision"), [("1.2.3", "v1.2.3"), ("1.2.4.dev0", "main")])
def test_on_pypi_links_lead_to_the_published_sources(version, revision, tmp_path):
    source = "https://example.org/me/kfit"
    metadata = metadata_with(version, source, tmp_path)
    links = links_of(metadata)
    assert metadata.get_all("Project-URL") == [f"Source, {source}"]
    assert f"{source}/blob/{revision}/docs/accelerators.md" in links
    assert f"{source}/raw/{revision}/docs/figures/dark.svg" in links
    for link in links:
        path = re.match(rf"{source}/(?:blob|raw)/{revision}/([^#]+)", link)
        assert link.startswith("https://")
        assert path is None or (ROOT / path[1]).exists(), link


def test_on_pypi_links_are_text_if_no_sources_are_published(tmp_path):
    text = metadata_with("1.2.3", "", tmp_path).get_payload()
    assert "\ndocs/accelerators.md and docs/clusters.md list what was tested\n" in text
    assert "multi-worker training (examples/multi_worker_training.ipynb)" in text
    assert "<picture>" not in text
    assert "\n\n**CPU only so far**" in text


def test_import_kfit_is_light(installed, tmp_path):
    code = """
import sys, time
start = time.perf_counter()
import kfit, kfit.datasets
print(time.perf_counter() - start)
dir(kfit), dir(kfit.datasets)
print(sorted({"tensorflow", "keras", "numpy", "h5py"} & set(sys.modules)))
"""
    results = [python(code, installed, tmp_path).splitlines() for _ in range(3)]
    assert {loaded for _, loaded in results} == {"[]"}
    assert min(float(seconds) for seconds, _ in results) < 0.1


def test_an_unknown_name_is_an_attribute_error(installed, tmp_path):
    code = """
import kfit, kfit.datasets
for module in (kfit, kfit.datasets):
    try:
        module.nonsense
    except AttributeError as error:
        print(error)
"""
    assert python(code, installed, tmp_path).splitlines() == [
        "module 'kfit' has no attribute 'nonsense'",
        "module 'kfit.datasets' has no attribute 'nonsense'",
    ]


def test_the_sdist_holds_the_project(dist):
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    expected |= {"kfit/py.typed", "callbacks/__init__.py", "datasets/digits.npz", ".ci/run"}
    for folder in ("kfit", "callbacks", "datasets", "tests", "examples"):
        files = (ROOT / folder).rglob("*.py")
        expected |= {str(path.relative_to(ROOT)) for path in files}
    assert expected - names == set()
    assert not any("__pycache__" in name for name in names)


def test_the_digits_are_small(dist):
    assert (ROOT / "datasets" / "digits.npz").stat().st_size < 100_000
    [wheel] = dist.glob("*.whl")
    assert wheel.stat().st_size < 1_200_000
