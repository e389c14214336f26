//! What is wrong with a trace.
