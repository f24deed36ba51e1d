"What the site has on every page beside what its notebook holds: a link that opens it in Colab, its first figure as its picture, and on the home page all pictures."
import base64
from pathlib import Path

import yaml
from nbdev.config import get_config
from nbdev.process import Processor
from execnb.nbio import mk_cell

from common import page_name,pages

HOME = "index"
GALLERY = dict(type="grid", fields=["image", "title", "description"], sort=False)  # in the order of `contents`


def colab_link(conf, name: str) -> str:
    "The address in Colab of notebook `name` of the repository that settings.ini names."
    repo = conf.git_url.removeprefix("https://github.com/").rstrip("/")
    return f"https://colab.research.google.com/github/{repo}/blob/{conf.branch}/{name}"


def colab_line(conf, name: str) -> str:
    "The line under a page's title."
    return f"[Open in Colab]({colab_link(conf, name)}) and run there first: `!pip install git+{conf.git_url}`"


def first_figure(cells) -> str|None:
    "The first png that `cells` show, in base64."
    found = (o["data"]["image/png"] for c in cells for o in c.get("outputs", []) if "image/png" in o.get("data", {}))
    return next(("".join(o) for o in found), None)


class ForSite(Processor):
    "Runs behind nbdev's own processors (settings.ini names it under `procs`): the first cell is the front matter then, and what is hidden is gone."
    def end(self):
        conf,path = get_config(),Path(self.nb.path_)
        head = self.nb.cells[0]
        front = yaml.safe_load(head.source.strip().strip("-"))
        figure = first_figure(self.nb.cells)
        if figure and "image" not in front:
            dest = conf.config_path/"_proc/figures"/f"{path.stem}.png"
            dest.parent.mkdir(parents=True, exist_ok=True)
            dest.write_bytes(base64.b64decode(figure))
            front["image"] = f"/figures/{dest.name}"
        if path.stem == HOME:
            listed = [page_name(o).removeprefix("nbs/") for o in pages(conf.config_path) if o.stem != HOME]
            front.setdefault("listing", GALLERY | dict(contents=listed))
        else: self.nb.cells.insert(1, mk_cell(colab_line(conf, page_name(path)), "markdown"))
        head.source = f"---\n{yaml.dump(front)}\n---\n\n"
