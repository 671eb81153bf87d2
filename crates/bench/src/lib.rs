//! Published experiments reproduced, peers measured beside
