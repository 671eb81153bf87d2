//! Schedulability analysis: which CPU reservation a task set needs
