# sushy-tools with its fake driver patched onto one machine of the rack.
# Arguments: the rack's socket for that machine, then those of sushy-emulator.
import socket
import sys

from sushy_tools import error
from sushy_tools.emulator import main
from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver

PLUG = sys.argv.pop(1)
POWER = {
    "On": "power 1",
    "ForceOn": "power 1",
    "ForceOff": "power 0",
    "GracefulShutdown": "shutdown 1",
    "ForceRestart": "reset 1",
    "GracefulRestart": "reset 1",
}
BOOT = {"Pxe": "pxe", "UefiHttp": "http"}


def ask(line):
    with socket.socket(socket.AF_UNIX) as plug:
        plug.connect(PLUG)
        plug.sendall(line.encode() + b"\n")
        answer = b""
        while part := plug.recv(4096):
            answer += part
    answer = answer.decode().strip()
    if answer.startswith("error:"):
        raise error.FishyError(answer, 409)
    return answer


def get_power_state(self, identity):
    self._get(identity)
    return "On" if ask("get power") == "power:1" else "Off"


def set_power_state(self, identity, state):
    self._get(identity)
    if state not in POWER:
        raise error.NotSupportedError(f"Power state {state} is not supported")
    ask("set " + POWER[state])


def get_boot_device(self, identity):
    self._get(identity)
    known = {"boot:" + word: name for name, word in BOOT.items()}
    return known.get(ask("get boot"), "Hdd")


def set_boot_device(self, identity, boot_source):
    self._get(identity)
    ask("set boot " + BOOT.get(boot_source, "default"))


for patched in (get_power_state, set_power_state, get_boot_device, set_boot_device):
    setattr(FakeDriver, patched.__name__, patched)
main.main()
