package systemtest

import (
	"regexp"
	"testing"
	"time"
)

// The server reboots while istiod does not run. With its sealed certificate, and with a certificate
// from files, it serves its last configuration with mutual TLS. The time until it serves is
// compared with the time of an Envoy without an agent; in the full test, the difference is limited.
func TestFleet_ServesAfterARebootWithoutIstiod(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	server := &certified{Host: f.server}
	server.WriteText("/etc/alone.json", alone)
	server.WriteText("/etc/systemd/system/alone.service", aloneUnit)
	server.WriteText("/etc/outrider/conf.d/70-output.toml",
		"[identity]\noutput_dir = \"/var/lib/outrider/outrider/certificates\"\n")
	server.MustRun(t, "systemctl", "enable", "outrider.service")
	f.start()
	server.Eventually(time.Minute, "the certificate is sealed", func() bool {
		_, err := server.Run(t.Context(), "test", "-s",
			"/var/lib/outrider/outrider/certificate.sealed")
		return err == nil
	})
	f.rebootWithout(server, "cache")

	server.RunScript(`cp -r /var/lib/outrider/outrider/certificates /etc/outrider/certificates
chgrp -R outrider /etc/outrider/certificates; chmod -R g+rX /etc/outrider/certificates`)
	server.WriteText("/etc/outrider/conf.d/70-output.toml", `[discovery]
auth = "mtls"
[identity]
provider = "files"
cert_file = "/etc/outrider/certificates/cert-chain.pem"
key_file = "/etc/outrider/certificates/key.pem"
root_ca_file = "/etc/outrider/certificates/root-cert.pem"
`)
	server.MustRun(t, "systemctl", "reload", "outrider.service")
	f.rebootWithout(server, "files")
}

// rebootWithout reboots the server while istiod does not run. It compares Envoy's configuration,
// and the certificate, with those before the reboot.
func (f *fleet) rebootWithout(server *certified, source string) {
	f.t.Helper()
	f.mutual()
	before, serial := f.configuration(), server.workload().Serial
	for _, away := range f.away {
		away()
	}
	if err := server.Reboot(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	server.Eventually(time.Minute, "the agent is ready",
		func() bool { return server.Property("outrider", "ActiveState") == "active" })
	f.answers("200") // repeated: the capture begins only after the agent is ready
	f.mutual()
	if state := server.Status().Discovery.State; state != "cached" {
		f.t.Errorf("discovery is %s", state)
	}
	if now := server.workload(); now.Source != source || now.Serial != serial {
		f.t.Errorf("after the reboot: %+v, want serial %s from %s", now, serial, source)
	}
	if now := f.configuration(); now != before {
		f.t.Errorf("configuration after the reboot:\n%s\nbefore:\n%s", now, before)
	}
	server.MustRun(f.t, "systemctl", "start", "alone.service")
	took := func(unit string) time.Duration {
		return server.sinceBoot(unit, "ActiveEnterTimestampMonotonic") -
			server.sinceBoot(unit, "InactiveExitTimestampMonotonic")
	}
	agent, envoy := took("outrider.service"), took("alone.service")
	f.t.Logf("%s: ready after %v, Envoy alone after %v", source, agent, envoy)
	if full() && agent-envoy > mostLater {
		f.t.Errorf("ready %v after Envoy alone would be, at most %v", agent-envoy, mostLater)
	}

	f.connect()
	server.Eventually(time.Minute, "the agent is connected",
		func() bool { return server.Status().Discovery.State == "connected" })
	f.await("True")
	f.answers("200")
}

// originalDestinations matches clusters of type ORIGINAL_DST, whose endpoints depend on recent
// connections.
var originalDestinations = regexp.MustCompile(`ORIGINAL_DST .*`)

// configuration returns the listeners, routes and clusters of the server's Envoy, without draining
// listeners.
func (f *fleet) configuration() string {
	f.t.Helper()
	return originalDestinations.ReplaceAllString(f.server.RunScript("(outrider proxy listeners; "+
		"outrider proxy routes; outrider proxy clusters) | grep -v draining | uniq"), "")
}
