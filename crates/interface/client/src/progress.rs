//! Who drives the runtime.

/// The embedded form: the calling thread drives the runtime inside its own process.
pub trait Progress: Send + Sync {
    /// Does what there is to do, and returns. Called after each emit and in every round of a wait.
    fn progress(&self);

    /// The calling thread goes to sleep: whoever else can do it does what there is to do from now on.
    fn sleeps(&self) {}
}
