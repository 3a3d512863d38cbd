//! Reasons of the conditions of a MachineClaim. All are written by the provider that makes the claim.
//!
//! Pure.

use super::reasons;
use crate::claim::condition_type;

reasons! {
    /// Reasons of `Granted`. Written by the provider.
    pub enum GrantedReason: "Condition Granted of a MachineClaim", condition condition_type::GRANTED {
        Granted: "The claimant exists, and the host may start the claim.";
        GrantWithdrawn: "The host has started the claim, or the claim ends: the host may no longer read the Secret with the user data.";
        GrantExpired: "The host has not started the claim within 15 minutes, and may no longer read the Secret with the user data."
            => User, "Check the host: `bedplate machine explain NAME`. Delete the Machine of Cluster API, so that its owner replaces it.";
        EnrollmentChanged: "The host has enrolled again with another key. The former key may not read the Secret any more."
            => Agent, "No action needed: the provider grants the claim again once the host is heard.";
        HostHeld: "The host may still run the claim of another claimant."
            => User, "If that claimant is gone, release its claim: `bedplate claim release NAME`.";
        AwaitingAgent: "The host's agent was not heard since the claim was made, or its certificate has no enrollment group yet."
            => Agent, "Check that the host is up: `bedplate machine explain NAME`. The agent renews its certificate automatically.";
        ClaimantDeleting: "The claimant is being deleted, so the host does not start the claim."
            => Other, "No action needed: the provider releases the host.";
        ClaimantNotFound: "The claimant does not exist, so the host does not start the claim."
            => Other, "No action needed: the provider deletes a claim that its host has not started.";
        GrantFailed: "The provider failed to grant the host access to the Secret with the user data. The message has the cause."
            => Cluster, "Read the message. The provider tries again.";
    }
}

reasons! {
    /// Reasons of `Fenced`. Written by the provider.
    pub enum FencedReason: "Condition Fenced of a MachineClaim", condition condition_type::FENCED {
        PoweredOff: "The BMC has powered the host off, and pxed does not power it on."
            => User, "Repair the host, then power it on: `bedplate power on NAME`. Its agent empties the slots before the host is claimed again.";
        ConfirmedByUser: "A user has confirmed that the host is off, by the annotation bedplate.dev/host-is-off of the Machine."
            => User, "Power the host on only while the API server answers. Its agent empties the slots before the host is claimed again.";
        PoweringOff: "The host does not report, and an operation powers it off."
            => Bmc, "No action needed; `bedplate operation list` has its progress.";
        PowerOffFailed: "The host does not report, and its BMC did not power it off. The message has the cause."
            => User, "Power the host off, then confirm it: `bedplate claim release NAME --host-is-off`.";
        HostSilent: "The host does not report, and its Machine has no BMC."
            => User, "Make sure that the host is off, then confirm it: `bedplate claim release NAME --host-is-off`.";
    }
}

reasons! {
    /// Reasons of `Orphaned`. Written by the provider.
    pub enum OrphanedReason: "Condition Orphaned of a MachineClaim", condition condition_type::ORPHANED {
        ClaimantFound: "The claimant exists.";
        ClaimantNotFound: "The claimant does not exist, and its host has started the claim. The host stays as it is."
            => User, "Restore the claimant, or release the host: `bedplate claim release NAME`. The provider then deletes the claim.";
    }
}

reasons! {
    /// Reasons of `Wiped`. Written by the provider. Each is one for False.
    pub enum WipedReason: "Condition Wiped of a MachineClaim", condition condition_type::WIPED {
        AwaitingWipe: "The host is emptied. It must boot, and then have another key. A boot makes its state disk again."
            => Agent, "If the host does not come back, check its boot: `bedplate machine show NAME`. Then power-cycle it: `bedplate power cycle NAME`.";
        NotWiped: "The host reports Released, and its state disk does not have the token of this claim."
            => User, "Read condition Paved of the Machine: `bedplate machine show NAME`. If the agent has no feature wipe, boot the new host image. See docs/guides/claims.md#wipe.";
        KeyNotReplaced: "The host has a key that the claimant may have copied. The claim waits for another one."
            => User, "`bedplate claim explain NAME` names the next step. See docs/guides/claims.md#wipe.";
    }
}
