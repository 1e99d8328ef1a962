"""Render the images of the documentation: ``python -m tests.screenshots``.

Headless Chromium renders the HTML representations, and matplotlib draws the plots of the notebooks.
``python -m tests.screenshots pages docs/_build`` renders every built page for inspection.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr

import xr_nczarr

DOCS = Path(__file__).parent.parent / "docs"
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
FLAGS += " --disable-background-networking --disable-component-update --disable-sync"
DARK = "body { background: #111; color: #eee; }"


def render(folder: Path, content: str, size: str = "1000,700", style: str = "") -> Path:
    """Return a screenshot of a page with this content, rendered by headless Chromium."""
    page, image = folder / "page.html", folder / "page.png"
    head = f"<!doctype html><meta charset=utf-8><style>{style}</style>"
    page.write_text(f"{head}<body>{content}", encoding="utf-8")
    draw_page(page, image, size, folder / "profile")
    return image


def draw_page(page: Path, image: Path, size: str, profile: Path, *flags: str) -> None:
    """Write a screenshot of a page, rendered by headless Chromium."""
    command = ["chromium", *FLAGS.split(), *flags, f"--user-data-dir={profile}"]
    command += [f"--window-size={size}", f"--screenshot={image}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def draw_pages(built: Path, folder: Path) -> None:
    """Write screenshots of all pages of the built documentation into a folder."""
    for page in sorted(built.resolve().rglob("*.html")):
        name = "-".join(page.relative_to(built.resolve()).with_suffix("").parts)
        if not name.startswith(("_", "genindex", "py-modindex", "search")):
            profile = folder / "profile"
            draw_page(page, folder / f"{name}.png", "1400,2400", profile)
            draw_page(page, folder / f"{name}-phone.png", "500,2400", profile)
            draw_page(page, folder / f"{name}-dark.png", "1400,2400", profile, "--force-dark-mode")


def climate(folder: Path) -> str:
    """Write the store that the images show. Some of its chunks are missing."""
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(40, 90, 180)).cumsum(-1).astype("f4").round(1)
    dims, attributes = ("time", "lat", "lon"), {"units": "K", "long_name": "air temperature at 2 m"}
    root = xr.Dataset(
        {"temperature": (dims, smooth, attributes), "pressure": (dims, smooth.round(-1))},
        {"time": np.arange(40), "lat": np.arange(-89.0, 90, 2), "lon": np.arange(0.0, 360, 2)},
        {"title": "A model's daily means"},
    )
    soil = xr.Dataset({"moisture": (("layer", *dims[1:]), smooth[:4])})
    encoding = {name: {"zlib": True, "chunks": (10, 30, 45)} for name in root.data_vars}
    store = str(folder / "climate.nczarr")
    tree = xr.DataTree.from_dict({"/": root, "/soil": soil})
    xr_nczarr.to_nczarr(tree, store, encoding={"/": encoding})
    for number in range(12):
        os.remove(f"{store}/pressure/3.{number // 4}.{number % 4}")
    return store


def representations(folder: Path) -> dict[str, str]:
    """Return the notebook's HTML representations of a store, by image name."""
    store = climate(folder)
    dataset = xr.open_dataset(store, engine="nczarr")
    selection = {"time": slice(5, 15), "lat": slice(40, 70), "lon": slice(0, 50)}
    explained = dataset.nczarr.explain(selection)._repr_html_()
    overview = xr_nczarr.info(store)._repr_html_().replace(f"{folder}/", "")
    return {
        # as if the first variable had been clicked
        "info": overview.replace("<details>", "<details open>", 1),
        "explain": explained,
    }


def draw(name: str, figure: int) -> None:
    """Run a notebook and save one of its plots."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.close("all")
    notebook = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    namespace = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), namespace)
    plt.figure(figure).savefig(DOCS / f"images/{name}.png", dpi=70)


def main(arguments: list[str]) -> None:
    """Replace all images of the documentation, or render all its built pages."""
    if arguments[:1] == ["pages"]:
        folder = Path(tempfile.mkdtemp(prefix="pages-"))
        draw_pages(Path(arguments[1]), folder)
        print(folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        shown = representations(Path(folder))
        for name, size in {"info": "980,540", "explain": "900,480"}.items():
            image = render(Path(folder), shown[name], size)
            (DOCS / f"images/{name}.png").write_bytes(image.read_bytes())
    draw("climate", 2)
    draw("references", 2)


if __name__ == "__main__":
    main(sys.argv[1:])
