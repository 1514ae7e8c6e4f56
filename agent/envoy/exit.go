package envoy

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ExplainExit describes the end of an Envoy for people. code is ignored if signal ("SIGKILL", or
// "killed") is set. last are the last log lines, oldest first, of which the most relevant one is
// quoted.
func ExplainExit(code int, signal string, coreDump bool, last []string) string {
	var text string
	switch {
	case signal == "" && code == 0:
		text = "exited on request (status 0)"
	case signal == "":
		text = fmt.Sprintf("exited with status %d", code)
		if meaning := meaningOf(code); meaning != "" {
			text += " (" + meaning + ")"
		}
	default:
		text = "was ended by " + signalName(signal)
		if meaning := signalMeanings[signalName(signal)]; meaning != "" {
			text += ": " + meaning
		}
		if coreDump {
			text += "; it left a core dump (coredumpctl)"
		}
	}
	if signal == "" && code == 0 {
		return text
	}
	name := signalName(signal)
	// Earlier log lines, unless they are errors, do not explain a signal that another process sent.
	fromOutside := name == "SIGKILL" || name == "SIGTERM"
	for _, hint := range hints {
		if line := lastWith(last, hint.text); line != "" && !fromOutside {
			return text + ": " + hint.explanation + " (" + message(line) + ")"
		}
	}
	if line := relevantMessage(last, !fromOutside); line != "" {
		text += "; it said last: " + line
	}
	return text
}

// signalMeanings are the usual causes of signals that Outrider did not send.
var signalMeanings = map[string]string{
	"SIGKILL": "killed from outside, most likely by the kernel's OOM killer (see journalctl -k) or " +
		"by an operator",
	"SIGTERM": "stopped from outside",
	"SIGSEGV": "a crash inside Envoy",
	"SIGBUS":  "a crash inside Envoy, or a file it had mapped was cut short",
	"SIGILL":  "an instruction this processor does not have",
	"SIGFPE":  "a crash inside Envoy",
	"SIGABRT": "Envoy gave up on an internal error",
	"SIGSYS":  "a system call that the sandbox (SystemCallFilter=) does not allow",
	"SIGXCPU": "its limit of processor time was reached",
	"SIGXFSZ": "a file reached the limit of its size",
}

func signalName(signal string) string {
	if strings.HasPrefix(signal, "SIG") {
		return signal
	}
	for number := unix.Signal(1); number < 65; number++ {
		if number.String() == signal {
			return unix.SignalName(number)
		}
	}
	return signal
}

// meaningOf returns the meaning of an exit status. Envoy itself exits with 0 or 1 only; other
// statuses come from the process that starts it.
func meaningOf(code int) string {
	switch {
	case code == 126:
		return "it could not be executed"
	case code == 127:
		return "it was not found, or a library of it was not"
	case code > 128 && code < 128+65:
		if name := unix.SignalName(unix.Signal(code - 128)); name != "" {
			return "as after " + name
		}
	}
	return ""
}

// hints explain parts of Envoy's messages. The first match is used.
var hints = []struct{ text, explanation string }{
	{"previous envoy process is still initializing",
		"the flag of an epoch that failed to start is still set in shared memory"},
	{"errno=28 (see --base-id option)", "the directory of its sockets is full"},
	{"unable to bind domain socket with base_id", "another Envoy uses the same base id and epoch"},
	{"cannot open shared memory region",
		"the shared memory of this base id belongs to another user or is gone"},
	{"hot restart sendmsg() failed", "the epoch it took over from died before it had handed over"},
	{"parent did not respond as expected",
		"the epoch it was to take over from answered something else"},
	{"runtime code generation failed",
		"the sandbox forbids code generation, which Lua and Wasm need (MemoryDenyWriteExecute=)"},
	{"Address already in use", "something else listens on a port it needs"},
	{"cannot bind", "it could not listen on an address"},
	{"Permission denied", "it may not use something it needs"},
	{"error initializing config", "it refused its configuration"},
}

func lastWith(lines []string, text string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], text) {
			return lines[i]
		}
	}
	return ""
}

// relevantMessage returns the message of the last critical line, else of the last error. If there
// is neither and anyLine is set, it returns the last message.
func relevantMessage(lines []string, anyLine bool) string {
	for _, level := range []string{"critical", "error"} {
		for i := len(lines) - 1; i >= 0; i-- {
			if line, ok := parseLogLine(lines[i]); ok && line.Level == level &&
				line.Component != "backtrace" {
				return line.Message
			}
		}
	}
	if !anyLine {
		return ""
	}
	last := ""
	for i := len(lines) - 1; i >= 0; i-- {
		text := strings.TrimSpace(lines[i])
		line, ok := parseLogLine(text)
		switch {
		case text == "":
		// skip stack frames
		case ok && line.Component == "backtrace" && !strings.HasPrefix(line.Message, "Caught "):
			if last == "" {
				last = line.Message
			}
		default:
			return message(text)
		}
	}
	return last
}

func message(line string) string {
	if parsed, ok := parseLogLine(line); ok {
		return parsed.Message
	}
	return line
}
