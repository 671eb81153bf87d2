//! Datapath over kernel UDP sockets
