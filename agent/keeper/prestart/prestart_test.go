package prestart

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyAnAgentThatServesWantsAKeeper(t *testing.T) {
	for line, want := range map[string]string{
		"": "", "--config /x": "/x", "-config=/x": "/x", "--instance=a": "a", "-instance a": "a", "-config --check": "--check", "-config": "",
		"--check": "none", "--config /x --check": "none", "--version": "none", "-h": "none", "x": "none", "---config /x": "none", "-": "none", "--": "none",
		"-configuration": "none", "-test.run=X": "none", "-config /x more": "none",
	} {
		got, ok := serves(strings.Fields(line))
		if !ok {
			got = "none"
		}
		if got != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}

func TestSystemdHasAKeeperOfItsOwn(t *testing.T) {
	Begin(nil, func(string) string { return "set" })
	if waiting := Take(); begun != nil || waiting != nil {
		t.Error("a keeper was started beside systemd's")
	}
}

func pair(t *testing.T) (agent *os.File, keeper int) {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	agent = os.NewFile(uintptr(ends[0]), "agent")
	t.Cleanup(func() { _ = agent.Close() })
	return agent, ends[1]
}

func TestArgumentsAndFilesAreHandedOver(t *testing.T) {
	agent, keeper := pair(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	want := []string{"-folder", "/a b", "", "ü"}
	if err := HandOver(agent, want, reader, writer); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	got, files, err := Await(keeper)
	if err != nil || !slices.Equal(got, want) || len(files) != 2 {
		t.Fatalf("%q, %v, %v", got, files, err)
	}
	defer func() { _ = syscall.Close(files[0]) }()
	theirs := os.NewFile(uintptr(files[1]), "theirs")
	if _, err := theirs.WriteString("through"); err != nil {
		t.Error(err)
	}
	_ = theirs.Close()
	if text, err := io.ReadAll(reader); err != nil || string(text) != "through" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestWhatCannotBeAKeeperEnds(t *testing.T) {
	agent, keeper := pair(t)
	_ = agent.Close()
	if _, _, err := Await(keeper); !errors.Is(err, io.EOF) {
		t.Errorf("the agent ended: %v", err)
	}
	agent, keeper = pair(t)
	_ = syscall.Close(keeper)
	if err := HandOver(agent, []string{"x"}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the keeper ended: %v", err)
	}
	agent, keeper = pair(t)
	if err := HandOver(agent, []string{strings.Repeat("x", maxArguments)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Await(keeper); err == nil || !strings.Contains(err.Error(), "longer") {
		t.Errorf("too long: %v", err)
	}
}
