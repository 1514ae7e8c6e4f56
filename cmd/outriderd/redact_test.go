package main_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// The error message of an Envoy that cannot start contains a part of its configuration. Neither the
// log nor any output that every user may read contains the credential in that part.
func TestLog_RedactsEnvoysQuotes(t *testing.T) {
	const credential, why = "s3cret-value",
		"Unable to unpack as envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	r := rig.New(t, rig.Options{Race: true})
	r.WriteFile("override.json",
		`{"static_resources": {"clusters": [{"name": "a", "connect_timeout": "1s", "typed_extension_protocol_options": {
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
			"@type": "type.googleapis.com/envoy.config.core.v3.HeaderValue", "key": "x", "value": "`+credential+`"}}}]}}`)
	override := fmt.Sprintf("bootstrap_override = %q\n", filepath.Join(r.Dir, "override.json"))
	r.SetTOML("[envoy]\nrestart_limit = 1\nrestart_backoff_min = \"10ms\"\n" + override)
	daemon := r.Start()
	if exit := daemon.Wait(t, time.Minute); exit != 75 {
		t.Errorf("exit %d", exit)
	}
	if said := daemon.Output(); strings.Contains(said, credential) || strings.Count(said, why) < 2 {
		t.Errorf("told: %s", said)
	}

	r.SetTOML("[reload]\nwatch = false\nvalidate = false\n")
	daemon = r.StartReady()
	r.SetTOML("[reload]\nwatch = false\nvalidate = false\n[envoy]\n" + override)
	reload := r.RunOutrider("reload")
	if reload.ExitCode != 1 || !strings.Contains(reload.Stderr, why) {
		t.Errorf("reload: exit %d: %s", reload.ExitCode, reload.Stderr)
	}
	for from, told := range map[string]string{"log": daemon.Output(), "reload": reload.Stdout +
		reload.Stderr,
		"status": r.RunOutrider("status", "--json").Stdout, "epochs": r.RunOutrider("epochs",
			"--json").Stdout} {
		if strings.Contains(told, credential) {
			t.Errorf("%s: %s", from, told)
		}
	}
}
