// Package gate is what the container runtime runs before it starts a container with a claim: an OCI hook
// (createRuntime) that the claim's CDI file names. It asks the agent to put the container under its
// reservation, or whether it has passed it on its way to its network, and fails if that cannot be, so that the container
// does not start while the agent is away,
// whatever the runtime does with its plugins. It is a program of its own, because it has to start fast.
package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Patience is how long the gate waits for the agent.
const Patience = 5 * time.Second

// MaxState is how much of the runtime's state is read.
const MaxState = 1 << 20

// Request is the part of the OCI state that the agent needs.
type Request struct {
	// ID is the runtime's name for the container.
	ID string `json:"id"`
	// Pid is the container's first process, stopped before its program.
	Pid int `json:"pid"`
	// Bundle is the directory of the container's configuration; it is not passed on.
	Bundle string `json:"bundle,omitempty"`
	// Seccomp is the policy of system calls that the container gets, as the configuration has it (linux.seccomp of the OCI runtime specification):
	// what the agent asks the runtime for an older one does not know. Nothing if there is none, or it cannot be read.
	Seccomp json.RawMessage `json:"seccomp,omitempty"`
}

// Answer is the agent's: an empty error lets the container start.
type Answer struct {
	Error string `json:"error,omitempty"`
}

// seccomp is the policy in a bundle.
func seccomp(bundle string) json.RawMessage {
	file, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil
	}
	defer file.Close()
	var config struct {
		Linux struct {
			Seccomp json.RawMessage `json:"seccomp"`
		} `json:"linux"`
	}
	if json.NewDecoder(io.LimitReader(file, MaxState)).Decode(&config) != nil {
		return nil
	}
	return config.Linux.Seccomp
}

// Pass reads the OCI state of a container and returns nil if the agent on the socket has put it under its
// reservation.
func Pass(state io.Reader, socket string) error {
	var request Request
	if err := json.NewDecoder(io.LimitReader(state, MaxState)).Decode(&request); err != nil {
		return fmt.Errorf("cannot read the container's state: %w", err)
	}
	if request.ID == "" || request.Pid <= 0 {
		return fmt.Errorf("the container's state names no container or no process: id %q, pid %d", request.ID, request.Pid)
	}
	request.Seccomp, request.Bundle = seccomp(request.Bundle), ""
	conn, err := net.DialTimeout("unix", socket, Patience)
	if err != nil {
		return fmt.Errorf("takt-node does not answer, so that nobody would give the container what it has claimed: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return fmt.Errorf("cannot ask takt-node: %w", err)
	}
	var answer Answer
	if err := json.NewDecoder(io.LimitReader(conn, MaxState)).Decode(&answer); err != nil {
		return fmt.Errorf("takt-node gave no answer: %w", err)
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}
