"""The playground's page, made while the site is built, around a network that is trained here.

It learns MNIST if `binep data fetch mnist` was run before, in one to two minutes, and else the
digits that come with the package, in seconds. The run stays in `build/playground` until its recipe
changes. The repository holds neither weights nor images.
"""

import contextlib
import functools
import logging
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from binep.deploy.export import Options, export
from binep.errors import BinepError
from binep.training import recipe as recipes
from binep.training import runs
from binep.training.naming import run_name

PAGE = "playground/live.html"
MARK = "<!-- the network -->"
FOLDER = Path(__file__).parents[2] / "build" / "playground"
RECIPES = (
    ("mnist-1fc-wa-awake", ["network.dense=[2048]", "training.epochs=12"]),
    ("digits-1fc-wa", ["network.dense=[512]", "training.epochs=12"]),
)
log = logging.getLogger("mkdocs.plugins.playground")


def on_files(files: Any, config: Any) -> Any:
    """Add the page to those of the site."""
    with tempfile.TemporaryDirectory() as folder:
        (page,) = export(trained(), Path(folder), "web", Options(), offline=True)
        files.append(File.generated(config, PAGE, content=page.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Say which network it is, where a page asks for it."""
    return markdown.replace(MARK, about(trained())) if MARK in markdown else markdown


@functools.cache
def trained() -> runs.Run:
    """The finished run of the first recipe whose data are there."""
    recipe = _recipe()
    folder = FOLDER / run_name(recipe, seed=0)
    # A run of an older version may not be readable any more: then it is trained anew.
    with contextlib.suppress(BinepError):
        run = runs.open_run(folder)
        if run.finished and recipes.plain(run.recipe) == recipes.plain(recipe):
            return run
    log.info(f"Training the network of the playground: {recipe.name}")
    return runs.train(recipe, out=FOLDER, overwrite=True, device="cpu", offline=True)


def about(run: runs.Run) -> str:
    """Its recipe and its error, as the page of the playground says them."""
    last, test = run.metrics[-1], run.dataset(device="cpu", offline=True).test
    error, hidden = last["test_error"]["average"], run.recipe.network.dense[0]
    return (
        f"The network on the page is `{run.record['recipe']}` with {hidden:,} hidden neurons after "
        f"{len(run.metrics)} epochs: {error:.2f} % test error on {len(test.images):,} images (one "
        f"run, seed {run.record['seed']}, not chosen)."
    )


def _recipe() -> recipes.Recipe:
    missing = None
    for name, overrides in RECIPES:
        recipe = recipes.load(name, overrides)
        try:
            recipe.load_data(offline=True)
        except BinepError as error:
            log.info(f"Not in the playground: {error}")
            missing = error
        else:
            return recipe
    raise missing or BinepError("no recipe for the playground")
