//! TAI instants, durations, cycles and traffic classes: plain types without a clock
