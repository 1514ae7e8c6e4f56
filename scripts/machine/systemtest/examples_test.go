package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/packaging/examples"
)

// exampleHost is a host on which tests install examples as the examples' comments describe.
type exampleHost struct{ *Host }

// install runs the commands in the comments of an example. change is a sed script that is then
// applied to its files; "": none.
func (h exampleHost) install(name, change string) {
	h.t.Helper()
	example, err := examples.FindExample(name)
	if err != nil {
		h.t.Fatal(err)
	}
	_, comments, found := strings.Cut(example.Files[0].Text, "\n# Install:\n")
	if !found {
		h.t.Fatalf("%s does not say how to install it", name)
	}
	ran := 0
	for line := range strings.Lines(comments) {
		command, found := strings.CutPrefix(line, "#   ")
		if !found {
			break
		}
		h.RunScript("cd /root && " + command)
		ran++
		if copied := strings.HasPrefix(command, "cp -r "); copied && change != "" {
			for _, file := range example.Files {
				h.RunScript("sed -i '" + change + "' /etc/outrider/" + file.Path)
			}
		}
	}
	if ran < 2 {
		h.t.Fatalf("%s: %d commands", name, ran)
	}
}

// remove stops all agents, and removes the files of examples.
func (h exampleHost) remove(names ...string) {
	h.t.Helper()
	h.RunScript("systemctl stop outrider.slice; systemctl disable outrider")
	for _, name := range names {
		example, err := examples.FindExample(name)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, file := range example.Files {
			h.RunScript("rm /etc/outrider/" + file.Path)
		}
	}
}

// answers waits until the output of curl with the given arguments contains a text.
func (h exampleHost) answers(want, arguments string) {
	h.t.Helper()
	got := ""
	h.Eventually(time.Minute, "curl "+arguments+" prints "+want, func() bool {
		got = h.RunScript("curl -s -i -m 10 " + arguments + " 2>&1 || echo curl: exit $?")
		return strings.Contains(got, want)
	})
}

// explains checks that the output of `outrider mesh explain` contains all texts.
func (h exampleHost) explains(arguments string, wants ...string) {
	h.t.Helper()
	got := h.RunScript("outrider mesh explain " + arguments + " 2>&1 || true")
	for _, want := range wants {
		if !strings.Contains(got, want) {
			h.t.Errorf("mesh explain %s: no %q in\n%s", arguments, want, got)
		}
	}
}

// TestAgentExamples installs the examples for workloads one by one, and sends requests.
func TestAgentExamples(t *testing.T) {
	t.Parallel()
	h := exampleHost{NewHost(t)}
	h.RunScript(outside + "ip route add default via 198.51.100.9\n" +
		"mkdir -p /usr/share/doc/outrider && cp -r /opt/packaging/examples /usr/share/doc/outrider/\n" +
		"rm /etc/outrider/mesh.d/web.yaml\n" +
		"systemd-run --quiet --unit=app /opt/programs/backend -http 127.0.0.1:3000 -tcp 127.0.0.1:3001")
	root := pkitest.NewAuthority(t, "root", nil)
	for _, name := range []string{"shop", "orders"} {
		chain, key := root.Issue(t, pkitest.LeafTemplate(name, 24*time.Hour))
		h.WriteText("/root/"+name+".crt", string(chain))
		h.WriteText("/root/"+name+".key", string(key))
	}
	h.WriteText("/root/roots.crt", string(pkitest.PEM(root.Certificate)))

	run := func(name string, test func(t *testing.T, h exampleHost)) {
		t.Run(name, func(t *testing.T) { test(t, exampleHost{&Host{Machine: h.Machine, t: t}}) })
	}
	run("sidecar", func(t *testing.T, h exampleHost) {
		// The example's remote service is on this host, so requests to it arrive here.
		h.install("sidecar", "s/192.0.2.20/127.0.0.1/")
		h.answers("HTTP/1.1 200", "http://127.0.0.1:8080/")
		h.answers("HTTP/1.1 200", "-H 'Host: orders.internal' http://127.0.0.1:9080/")
		h.answers("HTTP/1.1 200", "-x http://127.0.0.1:9080 http://orders.internal/")
		h.answers("HTTP/1.1 502", "-H 'Host: other.internal' http://127.0.0.1:9080/")
		h.explains("orders.internal:9080", "sidecar.yaml:30", "VirtualService default/orders")
	})
	run("mutual-tls", func(t *testing.T, h exampleHost) {
		h.install("mutual-tls", "s:sa/orders:sa/shop:")
		h.answers("curl: exit", "http://127.0.0.1:8080/")
		h.answers("HTTP/1.1 200", "-H 'Host: orders.internal' http://127.0.0.1:9080/")
		h.answers("curl: exit", "-k https://127.0.0.1:8080/")
		h.answers("HTTP/2 200",
			"-k --cert /root/orders.crt --key /root/orders.key https://127.0.0.1:8080/")
		if got := h.RunScript("outrider certs"); !strings.Contains(got,
			"spiffe://cluster.local/ns/default/sa/shop") {
			t.Errorf("outrider certs: %s", got)
		}
		h.explains("orders.internal:9080", "mutual-tls.yaml", "DestinationRule default/orders")
	})
	run("access-rules", func(t *testing.T, h exampleHost) {
		h.install("access-rules", "")
		const as = "-k --cert /root/%[1]s.crt --key /root/%[1]s.key https://127.0.0.1:8080"
		orders, shop := fmt.Sprintf(as, "orders"), fmt.Sprintf(as, "shop")
		h.answers("HTTP/2 403", orders+"/")
		h.answers("HTTP/2 200", orders+"/items/7")
		h.answers("HTTP/2 403", "-X POST "+orders+"/items/7")
		h.answers("HTTP/2 403", shop+"/items/7")
		h.explains("shop.internal:8080/items --from spiffe://cluster.local/ns/default/sa/orders",
			"allowed by /etc/outrider/mesh.d/access-rules.yaml:12", "=> forwarded")
		h.explains("shop.internal:8080/items --from spiffe://cluster.local/ns/default/sa/shop",
			"=> answered with status 403: denied: no rule matches of /etc/outrider/mesh.d/access-rules.yaml:12")
	})
	h.remove("sidecar", "mutual-tls", "access-rules")

	run("capture-unit", func(t *testing.T, h exampleHost) {
		h.RunScript("umount /etc/resolv.conf 2>/dev/null; rm -f /etc/resolv.conf")
		h.WriteText("/etc/resolv.conf", "nameserver 198.51.100.9\noptions timeout:1 attempts:1\n")
		h.install("capture-unit", "s/192.0.2.30/198.51.100.9/")
		h.captureIs("on")
		const call = "curl -s -i -m 10 http://stock.internal/"
		if got := h.RunScript("systemd-run --quiet --unit=myapp --wait --pipe sh -c 'sleep 1; " + call +
			"'"); !strings.Contains(
			got, "HTTP/1.1 200") || !strings.Contains(got, "x-envoy-upstream-service-time") {
			t.Errorf("the unit: %s", got)
		}
		if got := h.RunScript(call + " || echo curl: exit $?"); !strings.Contains(got, "curl: exit 6") {
			t.Errorf("another unit: %s", got)
		}
		if got := h.RunScript("outrider capture explain 240.240.0.1:80 --unit myapp.service"); !strings.
			HasPrefix(got, "captured: goes to Envoy's port 15001 (capture.units)") {
			t.Errorf("explained as %s", got)
		}
		h.explains("stock.internal", "capture-unit.yaml", "VirtualService default/stock")
	})
	h.remove("capture-unit")

	run("two-instances", func(t *testing.T, h exampleHost) {
		h.install("two-instances", "")
		h.answers("The instance shop serves.", "http://127.0.0.1:8081/")
		h.answers("The instance web serves.", "http://127.0.0.1:8082/")
		if got := h.RunScript("outrider -i web mesh explain 127.0.0.1:8082"); !strings.Contains(got,
			"web.yaml") {
			t.Errorf("mesh explain: %s", got)
		}
		h.RunScript("systemctl reload outrider@shop")
		h.answers("The instance shop serves.", "http://127.0.0.1:8081/")
	})
}
