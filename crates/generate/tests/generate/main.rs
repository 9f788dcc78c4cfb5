//! Conversations, caches and sessions of a toy model: everything is compared bit by bit.

mod conversation;
mod lanes;
mod limits;
mod session;
mod stress;
mod toy;
