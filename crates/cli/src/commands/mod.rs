//! One file per command: its flags, what it does, what it prints.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod train;
