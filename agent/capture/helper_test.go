package capture

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func TestHelper_CapturesOnlyWhileEnvoyServes(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.apply(captureAll)
	r.answers(soon, "far 80")
	if s, err := r.client.Status(t.Context()); err != nil || s.State != StateWithdrawn {
		t.Errorf("%+v, %v", s, err)
	}
	r.startEnvoy()
	r.answers(30*time.Second, "15001")
	s, err := r.client.Status(t.Context())
	if err != nil || s.State != StateOn || s.CapturedFamilies != (AddressFamilies{true, true}) ||
		len(s.Counters) == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for range 3 {
		r.kill(r.envoy)
		t.Logf("direct %v after the kill of Envoy", r.answers(soon, "far 80"))
		r.startEnvoy()
		r.answers(30*time.Second, "15001")
	}
	// A stopped Envoy still has its sockets but accepts nothing.
	resume := parts.PauseProcess(t, r.envoy.Process.Pid)
	t.Logf("direct %v after SIGSTOP", r.answers(30*time.Second, "far 80"))
	resume()
	r.answers(soon, "15001")
}

func TestHelper_RedirectsNothingToOthers(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.apply(captureAll)
	r.startEnvoy()
	r.answers(30*time.Second, "15001")
	r.kill(r.envoy)
	parts.RunAs(t, appUser, func() {
		serve(t, OutboundPort, "stranger")
		serve(t, InboundPort, "stranger")
	})
	r.answers(soon, "far 80")
	s, err := r.client.Status(t.Context())
	if want := fmt.Sprintf("user %d listens on port 1500", appUser); err != nil ||
		s.State != StateWithdrawn || !strings.HasPrefix(s.Reason, want) {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestHelper_KilledLeavesNothingAndRestores(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.apply(captureAll)
	r.startEnvoy()
	r.answers(30*time.Second, "15001")
	for range 3 {
		r.kill(r.helper)
		if left := run(t, "", "nft", "list", "ruleset"); left != "" {
			t.Fatalf("left: %s", left)
		}
		if answer := r.answer(); answer != "far 80" {
			t.Errorf("answer %q", answer)
		}
		r.start() // no agent is needed: the settings are in the state folder
		t.Logf("back after %v", r.answers(soon, "15001"))
	}
	run(t, "", "nft", "flush", "ruleset")
	if answer := r.answer(); answer != "15001" {
		t.Errorf("after a flush: %q", answer)
	}
	if err := r.client.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	_ = r.helper.Wait()
	if left := run(t, "", "nft", "list", "ruleset"); left != "" {
		t.Errorf("left after stop: %s", left)
	}
	r.start()
	if s, err := r.client.Status(t.Context()); err != nil || s.State != StateOff {
		t.Errorf("after stop: %+v, %v", s, err)
	}
}

func TestHelper_ClosedRefusesInsteadOfSendingDirectly(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	closed := captureAll
	closed.FailOutboundClosed = true
	r.apply(closed)
	const refused = "dial tcp 10.2.0.1:80: connect: connection refused"
	r.answers(soon, refused)
	if s, err := r.client.Status(t.Context()); err != nil || !s.OutboundRejected {
		t.Errorf("%+v, %v", s, err)
	}
	r.startEnvoy()
	r.answers(30*time.Second, "15001")
	r.kill(r.envoy)
	r.answers(soon, refused)
	r.startEnvoy()
	r.answers(30*time.Second, "15001")
	r.kill(r.helper)
	if answer := r.answer(); answer != refused {
		t.Errorf("without the helper: %q", answer)
	}
	r.start()
	r.answers(soon, "15001")
	r.kill(r.envoy)
	r.answers(soon, refused)
	run(t, "", "nft", "flush", "ruleset") // deletes the table that rejects; it has no owner
	r.answers(soon, refused)
	if err := r.client.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.answers(soon, "far 80")
}

// Established connections stay redirected when the rules are withdrawn. During an upgrade of
// outrider-capture no connection goes direct.
func TestHelper_KeepsEstablishedConnections(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	parts.RunAs(t, envoyUser, func() {
		echo(t, OutboundPort)
		echo(t, InboundPort)
	})
	r.apply(captureAll)
	r.captures(StateOn)
	connection, err := net.Dial("tcp", net.JoinHostPort(far[0], "80"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	check := func(when string) {
		t.Helper()
		_ = connection.SetDeadline(time.Now().Add(2 * time.Second))
		buffer := make([]byte, 8)
		if _, err := connection.Write([]byte("hello")); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if n, err := connection.Read(buffer); err != nil || string(buffer[:n]) != "hello" {
			t.Fatalf("%s: %q, %v", when, buffer[:n], err)
		}
	}
	check("at first")
	table := run(t, "", "nft", "list", "table", "inet", "outrider")
	if err := r.helper.Process.Signal(unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-r.client.Done()
	parts.Eventually(t, time.Minute, "the new helper serves", func() bool {
		if now := run(t, "", "nft", "list", "table", "inet", "outrider"); now == "" {
			t.Fatalf("no rules during the upgrade; before: %s", table)
		}
		r.client, err = Dial(context.Background(), r.socket())
		return err == nil
	})
	defer r.client.Close()
	check("after the upgrade")
	if s, err := r.client.Withdraw(t.Context()); err != nil || s.State != StateWithdrawn {
		t.Fatalf("%+v, %v", s, err)
	}
	check("withdrawn")
	if answer := r.answer(); answer != "far 80" {
		t.Errorf("a new connection: %q", answer)
	}
	check("withdrawn for longer")
	_ = connection.Close()
	parts.Eventually(t, time.Minute, "the nat table is gone", func() bool {
		return run(t, "", "nft", "list", "ruleset") == ""
	})
}

func TestHelper_RefusesOthers(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	if err := os.Chmod(r.folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.socket(), 0o777); err != nil {
		t.Fatal(err)
	}
	for user, allowed := range map[int]bool{appUser: false, envoyUser: false, agentUser: true} {
		parts.RunAs(t, user, func() {
			client, err := Dial(t.Context(), r.socket())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := client.Status(t.Context()); (err == nil) != allowed {
				t.Errorf("user %d: %v", user, err)
			}
		})
	}
	parts.RunAs(t, agentUser, func() { // however many connections the agent has, root can open one
		for range maxConnections {
			client, err := Dial(t.Context(), r.socket())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			if _, err := client.Status(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	root, err := Dial(t.Context(), r.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := root.Status(t.Context()); err != nil {
		t.Errorf("root beside %d connections of the agent: %v", maxConnections, err)
	}
	for name, settings := range map[string]Settings{
		"another instance": {Instance: "other"},
		"a port 0":         {ExcludeInbound: []uint16{0}},
		"no network":       {Outbound: []netip.Prefix{{}}},
		"a rule":           {Instance: "x; flush ruleset"},
	} {
		if _, err := r.client.Apply(t.Context(), settings); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// outrider-capture notices units that start and stop, in any slice.
func TestHelper_FollowsUnits(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	own := ownCGroup(t)
	defer enter(t, own)
	slice := newUnit(t, fmt.Sprintf("outrider-test-%d.slice", os.Getpid()))
	name := fmt.Sprintf("web-%d.service", os.Getpid())
	only := captureAll
	only.Units = []string{name}
	r.apply(only)
	r.captures(StateOn)
	if answer := r.answer(); answer != "far 80" {
		t.Errorf("the unit does not run: %q", answer)
	}
	for range 3 {
		path := slice.Path + "/" + name
		folder := filepath.Join(cgroupRoot(t), path)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		enter(t, path)
		t.Logf("captured %v after its start", r.answers(soon, "15001"))
		s, err := r.client.Status(t.Context())
		if err != nil || len(s.Units) != 1 || s.Units[0].Path != path {
			t.Errorf("%+v, %v", s.Units, err)
		}
		enter(t, own)
		if answer := r.answer(); answer != "far 80" {
			t.Errorf("another unit: %q", answer)
		}
		if err := os.Remove(folder); err != nil {
			t.Fatal(err)
		}
		parts.Eventually(t, soon, "the stop of the unit is noticed", func() bool {
			s, err := r.client.Status(t.Context())
			return err == nil && len(s.Units) == 0
		})
	}
	except := captureAll
	except.ExcludeUnits = []string{slice.Name}
	r.apply(except)
	r.answers(30*time.Second, "15001")
	enter(t, slice.Path)
	if answer := r.answer(); answer != "far 80" {
		t.Errorf("excluded: %q", answer)
	}
}
