//! Pure: typed commands and their answers (IPMI 2.0 sections 20, 24, 28, 31, 33, 35). Sends nothing; [`crate::client`] does.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

pub mod boot;
pub mod channel;
pub mod chassis;
pub mod device;
pub mod fru;
pub mod payload;
pub mod sel;
pub mod sensor;
#[cfg(test)]
mod tests;

use crate::wire::{
    ParsePacketError,
    completion::Completion,
    message::{Request, Response},
};

/// A command whose answer has a type.
pub trait Command {
    /// Typed answer of the BMC.
    type Answer;

    /// The command as it is sent.
    fn request(&self) -> Request;

    /// Reads the data of an answer whose completion is [`Completion::Ok`].
    ///
    /// # Errors
    /// The answer violates the specification. Additional octets are permitted.
    fn answer(&self, data: &[u8]) -> Result<Self::Answer, ParsePacketError>;

    /// Reads an answer.
    ///
    /// # Errors
    /// The BMC refused, or its answer is not one.
    fn read(&self, response: &Response) -> Result<Self::Answer, ReadAnswerError> {
        match response.completion {
            Completion::Ok => self.answer(&response.data).map_err(ReadAnswerError::Answer),
            completion => Err(ReadAnswerError::Refused(completion)),
        }
    }
}

/// Reason why a command has no typed answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadAnswerError {
    /// The BMC refused it.
    #[error("the BMC refused the command: {0}")]
    Refused(Completion),
    /// The answer is malformed.
    #[error("the BMC's answer is malformed")]
    Answer(#[source] ParsePacketError),
}
