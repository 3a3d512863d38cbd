//! Octets of commands and answers, as the specification draws them, and whatever else a BMC may answer.

use proptest::prelude::*;

use super::{
    boot::{BootDevice, BootFlags, GetBootFlags, GetValidBitClearing, SetBootOption, plan_next_boot},
    channel::{ChannelCapabilities, GetChannelCapabilities},
    chassis::{ChassisControl, GetChassisStatus},
    device::{DeviceId, GetDeviceId, GetSystemGuid},
    sel::{GetSelEntry, GetSelInfo, LAST_RECORD, SelInfo},
    *,
};

fn read<C: Command>(command: &C, data: &[u8]) -> Result<C::Answer, ReadAnswerError> {
    command.read(&Response { completion: Completion::Ok, data: data.to_vec() })
}

#[test]
fn a_device_id_is_read_with_its_bcd_revision() {
    let data = [0x20, 0x81, 0x02, 0x45, 0x02, 0xbf, 0xa2, 0x02, 0x00, 0x00, 0x01, 0, 0, 0, 0];
    let expected = DeviceId {
        device: 0x20,
        revision: 1,
        unavailable: false,
        major: 2,
        minor: 45,
        ipmi: (2, 0),
        manufacturer: 674,
        product: 0x0100,
    };
    assert_eq!(read(&GetDeviceId, &data), Ok(expected));
}

#[test]
fn channel_of_ipmi_1_5_is_distinguished_from_one_of_both() {
    let command = GetChannelCapabilities { privilege: 4 };
    assert_eq!(command.request().data, [0x8e, 4]);
    let both =
        ChannelCapabilities { channel: 1, ipmi_1_5: true, ipmi_2_0: true, has_key: true, anonymous: false };
    assert_eq!(read(&command, &[1, 0x84, 0x24, 3, 0, 0, 0, 0]), Ok(both));
    let old = ChannelCapabilities { ipmi_2_0: false, has_key: false, anonymous: true, ..both };
    assert_eq!(read(&command, &[1, 0x04, 0x25, 3, 0, 0, 0, 0]), Ok(old));
}

#[test]
fn chassis_faults_are_named() {
    let status = read(&GetChassisStatus, &[0x09, 0x10, 0x0c, 0]).unwrap();
    assert!(status.is_on());
    let concerns: Vec<_> = status.concerns().collect();
    assert_eq!(concerns, ["power fault", "drive fault", "cooling or fan fault"]);
    assert_eq!(read(&GetChassisStatus, &[0x60, 0, 0]).unwrap().concerns().count(), 0);
}

#[test]
fn controls_keep_their_numbers() {
    use ChassisControl::{Cycle, Down, HardReset, SoftShutdown, Up};
    let all = [Down, Up, Cycle, HardReset, SoftShutdown];
    assert_eq!(all.map(ChassisControl::number), [0, 1, 2, 3, 5]);
    // Power that is on already is switched on in vain; a reset that comes again is another.
    assert_eq!(all.map(|control| control.request().once), [false, false, true, true, true]);
}

#[test]
fn the_next_boot_is_set_once_kept_past_a_minute_and_never_persistent() {
    let clearing = read(&GetValidBitClearing, &[1, 3, 0x04]).unwrap();
    assert_eq!(GetValidBitClearing.request().data, [3, 0, 0]);
    assert!(read(&GetValidBitClearing, &[1, 5, 0x04]).is_err());
    // Bit 0: kept on the push button; bit 3: after 60 seconds; what was set remains.
    let data = |plan: Vec<SetBootOption>| plan.iter().map(|option| option.request().data).collect::<Vec<_>>();
    let sent = data(plan_next_boot(BootDevice::Pxe, true, Some(clearing)));
    let expected: [&[u8]; 5] = [&[0, 1], &[3, 0x0d], &[4, 1, 1], &[5, 0xa0, 0x04, 0, 0, 0], &[0, 0]];
    assert_eq!(sent, expected);
    // An unreadable parameter is not written, and BIOS is 0x80.
    let expected: [&[u8]; 4] = [&[0, 1], &[4, 1, 1], &[5, 0x80, 0x04, 0, 0, 0], &[0, 0]];
    assert_eq!(data(plan_next_boot(BootDevice::Pxe, false, None)), expected);
    let plan = plan_next_boot(BootDevice::Pxe, false, Some(clearing));
    let required: Vec<_> = plan.into_iter().filter(|option| !option.is_optional()).collect();
    assert_eq!(required, [SetBootOption::Flags { efi: false, device: BootDevice::Pxe }]);
}

#[test]
fn boot_flags_are_read_and_locked_ones_do_not_count() {
    let flags = BootFlags { valid: true, persistent: false, efi: true, device: BootDevice::Pxe };
    assert_eq!(read(&GetBootFlags, &[1, 5, 0xa0, 0x04, 0, 0, 0]), Ok(flags));
    assert_eq!(read(&GetBootFlags, &[1, 0x85, 0xa0, 0x04, 0, 0, 0]), Ok(BootFlags { valid: false, ..flags }));
    assert!(read(&GetBootFlags, &[1, 4, 0xa0, 0x04, 0, 0, 0]).is_err());
}

#[test]
fn log_record_is_parsed_and_described() {
    let info = read(&GetSelInfo, &[0x51, 3, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0x82]).unwrap();
    assert_eq!(info, SelInfo { entries: 3, free: 4096, overflow: true });
    let record =
        [0xff, 0xff, 3, 0, 0x02, 0x00, 0x00, 0x00, 0x60, 0x20, 0, 4, 0x08, 0x11, 0x6f, 0x01, 0xff, 0xff];
    let record = read(&GetSelEntry(LAST_RECORD), &record).unwrap();
    assert_eq!((record.id, record.next, record.time), (3, LAST_RECORD, Some(0x6000_0000)));
    assert_eq!(record.to_string(), "power supply, sensor 0x11: event 0x6f asserted, data 01 ff ff");
}

#[test]
fn refusal_is_reported_by_its_completion_code() {
    let refused = Response { completion: Completion::Privilege, data: Vec::new() };
    assert_eq!(GetDeviceId.read(&refused), Err(ReadAnswerError::Refused(Completion::Privilege)));
}

proptest! {
    #[test]
    fn no_answer_makes_a_command_panic(data in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = (read(&GetDeviceId, &data), read(&GetSystemGuid, &data), read(&GetChassisStatus, &data));
        let _ = read(&GetChannelCapabilities { privilege: 4 }, &data);
        let _ = read(&GetValidBitClearing, &data);
        let _ = (read(&GetBootFlags, &data), read(&GetSelInfo, &data));
        if let Ok(record) = read(&GetSelEntry(1), &data) {
            prop_assert!(!record.to_string().is_empty());
        }
    }
}
