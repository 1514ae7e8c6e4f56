package envoy

import "testing"

func TestExplainExit(t *testing.T) {
	said := []string{
		"[Envoy (Epoch 1)] [2026-11-21 15:41:49.384][18873][info][main] loading",
		"[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][18873][critical][main] something broke",
		"[Envoy (Epoch 1)] [2026-11-21 15:41:49.386][18873][info][main] exiting",
	}
	tests := map[string]struct {
		code     int
		signal   string
		coreDump bool
		last     []string
		want     string
	}{
		"asked": {want: "exited on request (status 0)", last: said},
		"status": {code: 1, last: said,
			want: "exited with status 1; it said last: something broke"},
		"silent": {code: 1, want: "exited with status 1"},
		"not found": {code: 127,
			want: "exited with status 127 (it was not found, or a library of it was not)"},
		"status of 9": {code: 137, want: "exited with status 137 (as after SIGKILL)"},
		"OOM": {signal: "SIGKILL",
			want: "was ended by SIGKILL: killed from outside, most likely by the kernel's OOM killer (see journalctl -k) or by an operator"},
		"OOM, of one that talks": {signal: "SIGKILL", last: said[:1],
			want: "was ended by SIGKILL: killed from outside, most likely by the kernel's OOM killer (see journalctl -k) or by an operator"},
		"OOM, of one in trouble": {signal: "SIGKILL", last: said,
			want: "was ended by SIGKILL: killed from outside, most likely by the kernel's OOM killer (see " +
				"journalctl -k) or by an operator; it said last: something broke"},
		"OOM, long after a port was taken": {signal: "SIGKILL",
			last: []string{"[2026-11-26 01:49:36.385][1][warning][config] cannot bind '0.0.0.0:80': " +
				"Address already in use"},
			want: "was ended by SIGKILL: killed from outside, most likely by the kernel's OOM killer (see journalctl -k) or by an operator"},
		"signal words": {signal: "killed",
			want: "was ended by SIGKILL: killed from outside, most likely by the kernel's OOM killer (see journalctl -k) or by an operator"},
		"crash": {signal: "SIGSEGV", coreDump: true,
			want: "was ended by SIGSEGV: a crash inside Envoy; it left a core dump (coredumpctl)"},
		"backtrace": {signal: "SIGABRT", last: []string{
			"[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][backtrace] Caught Aborted, suspect " +
				"faulting address 0x1",
			"[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][backtrace] #0: [0x7f0000000000]"},
			want: "was ended by SIGABRT: Envoy gave up on an internal error; it said last: Caught Aborted, suspect faulting address 0x1"},
		"no space": {code: 1,
			last: []string{"unable to bind domain socket with base_id=7073180, id=0, errno=28 (see --base-id option)"},
			want: "exited with status 1: the directory of its sockets is full (unable to bind domain " +
				"socket with base_id=7073180, id=0, errno=28 (see --base-id option))"},
		"stuck": {code: 1,
			last: []string{"[Envoy (Epoch 1)] [2026-11-21 15:41:49.385][1][critical][main] error " +
				"initializing config 'previous envoy process is still initializing'"},
			want: "exited with status 1: the flag of an epoch that failed to start is still set in shared " +
				"memory (error initializing config 'previous envoy process is still initializing')"},
		"port": {code: 1, last: []string{"cannot bind '0.0.0.0:80': Address already in use", ""},
			want: "exited with status 1: something else listens on a port it needs (cannot bind '0.0.0.0:80': Address already in use)"},
		"no format": {code: 1, last: []string{"PARSE ERROR: Argument: --nonesuch", " "},
			want: "exited with status 1; it said last: PARSE ERROR: Argument: --nonesuch"},
		"real time":      {signal: "SIGRTMIN+3", want: "was ended by SIGRTMIN+3"},
		"unknown signal": {signal: "something", want: "was ended by something"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := ExplainExit(test.code, test.signal, test.coreDump,
				test.last); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
