//! Datapath over AF_XDP sockets
