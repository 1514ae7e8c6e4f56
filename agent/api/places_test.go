package api_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

const (
	oneRequest = "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"
	oneStream  = "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n"
	attempts   = 600
)

// hold opens 600 connections and sends the request on each; "" = none. It returns how many received
// status 200, and how many 503 or a reset. The connections are closed at the end of the test.
func hold(t *testing.T, socket, request string) (all []net.Conn, served, refused int) {
	t.Helper()
	for range attempts {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		all = append(all, connection)
		if request == "" {
			continue
		}
		_, _ = connection.Write([]byte(request))
		_ = connection.SetReadDeadline(time.Now().Add(20 * time.Second))
		answer := make([]byte, 4<<10)
		n, err := connection.Read(answer)
		switch {
		case strings.HasPrefix(string(answer[:n]), "HTTP/1.1 200"):
			served++
		case strings.HasPrefix(string(answer[:n]), "HTTP/1.1 503"),
			errors.Is(err, syscall.ECONNRESET):
			refused++
		}
	}
	return all, served, refused
}

// open returns the number of connections that the agent has not closed. It waits up to 10 s for the
// number to drop to most.
func open(connections []net.Conn, most int) (count int) {
	for deadline := time.Now().Add(10 * time.Second); ; {
		count = 0
		for _, connection := range connections {
			_ = connection.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := io.Copy(io.Discard, connection); errors.Is(err, os.ErrDeadlineExceeded) {
				count++
			}
		}
		if count <= most || time.Now().After(deadline) {
			return count
		}
	}
}

// Idle connections, with or without an earlier request, are evicted for new ones of the same user.
func TestIdleConnectionsGiveWay(t *testing.T) {
	for name, request := range map[string]string{"silent": "", "answered": oneRequest,
		"half a request": "GET /v1/status HTTP/1.1\r\nHost:"} {
		t.Run(name, func(t *testing.T) {
			socket := apitest.Serve(t, parts.ShortDir(t), &apitest.Backend{},
				condition.NewRegistry())
			stream, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			_, _ = stream.Write([]byte(oneStream))
			if _, err := stream.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			var all []net.Conn
			if request == oneRequest {
				var served int
				if all, served, _ = hold(t, socket, request); served != attempts {
					t.Errorf("%d of %d were served", served, attempts)
				}
			} else {
				all, _, _ = hold(t, socket, "")
				for _, connection := range all {
					_, _ = connection.Write([]byte(request))
				}
			}
			client := api.NewClient(socket)
			defer client.Close()
			if _, err := client.Status(t.Context()); err != nil {
				t.Errorf("another call of the same user: %v", err)
			}
			if kept := open(all, 62); kept > 62 {
				t.Errorf("%d are open beside two of 64", kept)
			}
			if open([]net.Conn{stream}, 1) != 1 {
				t.Error("a stream under way was ended")
			}
		})
	}
}

// Busy connections are not evicted; new ones are refused instead.
func TestBusyConnectionsStay(t *testing.T) {
	socket := apitest.Serve(t, parts.ShortDir(t), &apitest.Backend{}, condition.NewRegistry())
	all, served, refused := hold(t, socket, oneStream)
	if kept := open(all, 64); served != 64 || refused != attempts-64 || kept != 64 {
		t.Errorf("%d were served, %d refused, %d are open", served, refused, kept)
	}
}

// An unprivileged user cannot use the connections reserved for root, whether its own are busy or
// idle.
func TestOneUserCannotTakeAllConnections(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("tests of other users' requests must run as root")
	}
	for request, want := range map[string]string{
		oneRequest: "600 served, 0 refused, 16 open",
		oneStream:  "16 served, 584 refused, 16 open",
	} {
		dir := parts.ShortDir(t)
		hog := program(t, dir)
		socket := apitest.Serve(t, dir, &apitest.Backend{}, condition.NewRegistry())
		command := exec.Command(hog, "-test.run", "^TestHoldConnections$")
		command.Env = append(os.Environ(), "HOLD_CONNECTIONS_TO="+socket,
			"HOLD_CONNECTIONS_ASK="+request)
		command.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		input, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		output, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		told := make([]byte, 64)
		n, err := output.Read(told)
		if got := strings.TrimSpace(string(told[:n])); got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
		client := api.NewClient(socket)
		if _, err := client.Status(t.Context()); err != nil {
			t.Errorf("root is not served: %v", err)
		}
		client.Close()
		_ = input.Close()
		_, _ = io.Copy(io.Discard, output)
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestHoldConnections is the child process of TestOneUserCannotTakeAllConnections. Alone it does
// nothing.
func TestHoldConnections(t *testing.T) {
	socket := os.Getenv("HOLD_CONNECTIONS_TO")
	if socket == "" {
		return
	}
	all, served, refused := hold(t, socket, os.Getenv("HOLD_CONNECTIONS_ASK"))
	fmt.Printf("%d served, %d refused, %d open\n", served, refused, open(all, 16))
	_, _ = io.Copy(io.Discard, os.Stdin)
}
