"""Runs the modules of Debian's cloud-init on user data. Called by tests/cloud_init.rs.

Argument "plan": reads {"texts": [...], "instance": {...}} from standard input and records what the modules would do with each text.
Argument "apply": carries out the text in the file of the second argument, in the order of Debian's cloud.cfg.
"""

import base64
import copy
import json
import logging
import sys

from cloudinit import distros, handlers, subp, util
from cloudinit.config import cc_bootcmd, cc_runcmd, cc_scripts_user
from cloudinit.config import cc_users_groups, cc_write_files, cc_write_files_deferred
from cloudinit.handlers import jinja_template
from cloudinit.templater import detect_template

LOG = logging.getLogger("driver")
SCRIPTS = "/var/lib/cloud/instance/scripts"


class Cloud:
    """The part of cloud-init's own class that the modules use."""

    def __init__(self):
        self.distro = distros.fetch("debian")("debian", {}, None)

    def get_ipath(self, name):
        return SCRIPTS

    def get_ipath_cur(self):
        return "/var/lib/cloud/instance"

    def get_instance_id(self):
        return "6f9c"

    def get_public_ssh_keys(self):
        return []


def render(text, instance):
    """The cloud-config of a text, or an exception."""
    kind = handlers.type_from_starts_with(text)
    if kind == "text/jinja2":
        assert detect_template(text)[0] == "jinja"
        text = jinja_template.render_jinja_payload(text, "part-001", copy.deepcopy(instance))
        assert text is not None
        kind = handlers.type_from_starts_with(text)
    assert kind == "text/cloud-config", kind
    return text


def config(text):
    loaded = util.load_yaml(text)
    assert loaded is not None
    return loaded


def record(cfg, cloud):
    """The files and scripts of a cloud-config."""
    files, scripts = [], {}

    def write_file(path, content, mode=0o644, omode="wb", **_):
        if path.startswith(SCRIPTS):
            scripts["run"] = content
            return
        content = base64.b64encode(util.encode_text(content)).decode()
        files.append({"path": path, "mode": mode, "append": omode == "ab", "content": content})

    def chown(path, user=None, group=None):
        assert files[-1]["path"] == path
        files[-1].update(user=user, group=group)

    def run(arguments, **_):
        with open(arguments[1], encoding="utf-8", newline="") as script:
            scripts["boot"] = script.read()

    util.write_file, util.chownbyname, subp.subp = write_file, chown, run
    for module in (cc_bootcmd, cc_write_files, cc_runcmd, cc_write_files_deferred):
        module.handle("module", cfg, cloud, LOG, [])
    return {"files": files, **scripts}


def plan():
    task = json.load(sys.stdin)
    cloud, answers = Cloud(), []
    for text in task["texts"]:
        answer = {}
        try:
            answer["rendered"] = render(text, task["instance"])
            answer["plan"] = record(config(answer["rendered"]), cloud)
        except Exception as error:
            answer["error"] = repr(error)
        answers.append(answer)
    json.dump(answers, sys.stdout)


def apply(path):
    with open(path, encoding="utf-8", newline="") as file:
        cfg = config(render(file.read(), {}))
    cloud = Cloud()
    modules = (cc_bootcmd, cc_write_files, cc_users_groups, cc_runcmd, cc_write_files_deferred, cc_scripts_user)
    for module in modules:
        # A module that fails does not stop the next one.
        try:
            module.handle("module", cfg, cloud, LOG, [])
        except Exception as error:
            print(module.__name__, repr(error), file=sys.stderr)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "plan":
        plan()
    else:
        apply(sys.argv[2])
