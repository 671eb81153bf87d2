//! The contract of a datapath plugin, the packet stack of frame datapaths and the conformance suite
