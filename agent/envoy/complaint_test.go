package envoy

import "testing"

func TestComplaint(t *testing.T) {
	for output, want := range map[string]string{
		"": "",
		"[2026-11-21 16:21:48.6][31][info][main] reading\n" +
			"[Envoy (Epoch 2)] [2026-11-21 16:21:48.674][31360][critical][main] error initializing " +
			"configuration 'x.json': no such field\nin envoy.config\n": "error initializing configuration 'x.json': no such field in envoy.config",
		"PARSE ERROR: Argument: --nonsense\n             Couldn't find match for argument\n\n" +
			"Brief USAGE: \n   envoy\n": "--nonsense: Envoy has no such flag",
		"PARSE ERROR: Argument: (--concurrency)\n" +
			"             Couldn't read argument value from string 'x'\n\n": "--concurrency: Couldn't read argument value from string 'x'",
		"something else\nlast words\n": "last words",
	} {
		if got := ValidationError([]byte(output)); got != want {
			t.Errorf("complaint of %q is %q, should be %q", output, got, want)
		}
	}
}
