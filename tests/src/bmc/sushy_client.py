# Drives a BMC with python-sushy, a Redfish client that nobody here wrote.
# Arguments: URL, user, password, session|basic, then what to do, one after another; a line of JSON each.
import json
import sys
import warnings

import sushy
from sushy import auth
from sushy.resources.constants import ResetType
from sushy.resources.system.constants import BootSource, BootSourceOverrideEnabled

warnings.simplefilter("ignore")
RESET = {
    "on": ResetType.ON,
    "off": ResetType.FORCE_OFF,
    "soft": ResetType.GRACEFUL_SHUTDOWN,
    "reset": ResetType.FORCE_RESTART,
    "cycle": ResetType.POWER_CYCLE,
}


def describe(connection, system):
    manager = connection.get_manager(connection.get_manager_collection().members_identities[0])
    return {
        "power": system.power_state.value,
        "boot": system.boot["target"].value,
        "enabled": system.boot["enabled"].value,
        "uuid": system.uuid,
        "health": system.status.health.value,
        "systems": len(connection.get_system_collection().members_identities),
        "firmware": manager.firmware_version,
        "allowed": sorted(value.value for value in system.get_allowed_reset_system_values()),
        "log": len(system.log_services.get_members()) if hasattr(system, "log_services") else None,
    }


url, user, password, kind, *orders = sys.argv[1:]
scheme = auth.SessionAuth if kind == "session" else auth.BasicAuth
login = scheme(username=user, password=password)
connection = sushy.Sushy(url, auth=login, verify=False)
system = connection.get_system(connection.get_system_collection().members_identities[0])
for order in orders:
    if order == "show":
        system.refresh(force=True)
        print(json.dumps(describe(connection, system)))
    elif order == "pxe":
        system.set_system_boot_options(BootSource.PXE, enabled=BootSourceOverrideEnabled.ONCE)
    else:
        system.reset_system(RESET[order])
if kind == "session":
    login.close()
