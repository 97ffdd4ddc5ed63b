"""A `helm` of another version, where there is one on PATH, renders what Helm's library does."""

import shutil
import subprocess

import pytest
import yaml

from tests.charts import router_values as r
from tests.charts import values as v
from tests.charts.helm import CHARTS, objects
from tests.charts.test_model_server import CASES as SERVERS

HELM = shutil.which("helm")
ROUTERS = {f"router-{name}": values for name, values in r.CASES.items()}
CHARTED = {"warmpick": v.CASES | ROUTERS, "model-server": SERVERS}


def templated(chart, values, path):
    """What `helm template` writes."""
    path.write_text(yaml.safe_dump(values))
    flags = ["--namespace=inf", "--kube-version=1.33.0", f"--values={path}"]
    done = subprocess.run(
        [str(HELM), "template", "rel", str(CHARTS / chart), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def ordered(things):
    return sorted(things, key=lambda each: (each["kind"], each["metadata"]["name"]))


@pytest.mark.skipif(
    HELM is None,
    reason="NOT TESTED: the charts as a helm command renders them: there is none on PATH, only"
    " Helm's library; install one",
)
@pytest.mark.parametrize("chart", CHARTED)
def test_the_command_renders_the_same(chart, tmp_path):
    for name, values in CHARTED[chart].items():
        found = templated(chart, values, tmp_path / "values.yaml")
        assert ordered(found) == ordered(objects(chart, values)), name
