package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// dnsResult has a row for each server, kind of name and number of clients.
type dnsResult struct {
	Rows []dnsRow `json:"rows"`
}

type dnsRow struct {
	Server  string        `json:"server"`
	Names   string        `json:"names"`
	Clients int           `json:"clients"`
	Rate    float64       `json:"queries_per_second"`
	P99     time.Duration `json:"p99_ns"`
	Failed  int           `json:"failed"`
}

const (
	dnsNames    = 1000
	dnsTime     = 3 * time.Second // of each measurement
	dnsUpstream = "127.0.0.77"    // pilot-agent's code uses port 53 of the servers in resolv.conf
)

// proxies measures the DNS proxies of outriderd and pilot-agent alternately, with names of the mesh
// and with names that an upstream resolves, which outriderd caches.
func proxies(t *stage, s settings) any {
	upstream := &dns.Server{Addr: dnsUpstream + ":53", Net: "udp",
		Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
			m := new(dns.Msg).SetReply(query)
			m.Answer = []dns.RR{&dns.A{A: net.IPv4(192, 0, 2, 1), Hdr: dns.RR_Header{
				Name: query.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}}}
			_ = w.WriteMsg(m)
		})}
	go func() { _ = upstream.ListenAndServe() }()
	t.Cleanup(func() { _ = upstream.Shutdown() })
	servers := map[string]string{"outriderd": outriderDNS(t), "pilot-agent": istioDNS(t)}
	result := &dnsResult{}
	for _, clients := range []int{1, 50} {
		for _, names := range []string{"mesh", "upstream"} {
			rows := map[string]dnsRow{}
			for _, server := range []string{"outriderd", "pilot-agent"} {
				rig.Eventually(t, time.Minute, server+" answers", func() bool {
					return queryFor(servers[server], "svc1."+names+".test.", 1, 0).Failed == 0
				})
				row := queryFor(servers[server], names+".test.", clients, dnsTime)
				row.Server, row.Names = server, names
				rows[server] = row
				result.Rows = append(result.Rows, row)
			}
			ours, theirs := rows["outriderd"], rows["pilot-agent"]
			fmt.Printf("%s, %d clients: outriderd %.0f/s, p99 %v; pilot-agent %.0f/s, p99 %v\n", names,
				clients, ours.Rate, ours.P99, theirs.Rate, theirs.P99)
			factor := map[string]float64{"mesh": 1.5, "upstream": 3}[names]
			t.target(s, ours.Rate >= factor*theirs.Rate && ours.P99 <= theirs.P99,
				"%s, %d clients: %.1f times pilot-agent's rate", names, clients, ours.Rate/theirs.Rate)
		}
	}
	return result
}

// queryFor queries names below a suffix from closed-loop clients, at least once each.
func queryFor(server, suffix string, clients int, duration time.Duration) dnsRow {
	row := dnsRow{Clients: clients}
	var mu sync.Mutex
	var all []time.Duration
	var group sync.WaitGroup
	begun := time.Now()
	for c := range clients {
		group.Go(func() {
			connection, err := net.Dial("udp", server)
			if err != nil {
				return
			}
			defer func() { _ = connection.Close() }()
			var took []time.Duration
			failed := 0
			buffer := make([]byte, dns.MaxMsgSize)
			for i := 0; i == 0 || time.Since(begun) < duration; i++ {
				query := new(dns.Msg).SetQuestion(
					fmt.Sprintf("svc%d.%s", (i*7+c*31)%dnsNames, suffix), dns.TypeA)
				raw, _ := query.Pack() // no error: the name is valid
				sent := time.Now()
				_ = connection.SetDeadline(sent.Add(3 * time.Second))
				_, _ = connection.Write(raw)
				n, err := connection.Read(buffer)
				if err != nil || n < 12 || buffer[3]&15 != 0 || buffer[7] != 1 {
					failed++
					continue
				}
				took = append(took, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			all, row.Failed = append(all, took...), row.Failed+failed
		})
	}
	group.Wait()
	row.Rate = float64(len(all)) / time.Since(begun).Seconds()
	if slices.Sort(all); len(all) > 0 {
		row.P99 = all[len(all)*99/100]
	}
	return row
}

// outriderDNS starts outriderd with the names in a file, and returns the address of its proxy.
func outriderDNS(t *stage) string {
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	var hosts strings.Builder
	for i := range dnsNames {
		fmt.Fprintf(&hosts, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: svc%d}
spec:
  hosts: [svc%d.mesh.test]
  addresses: [240.240.%d.%d]
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
`, i, i, i/250, i%250)
	}
	r := rig.New(t, rig.Options{Mesh: map[string]string{"names.yaml": hosts.String()},
		TOML: fmt.Sprintf("[dns]\nlisten = %q\nupstream = [%q]\n", address, dnsUpstream)})
	r.StartReady()
	return address
}

// istioDNS starts the DNS server of pilot-agent, which its package provides, with the same names.
func istioDNS(t *stage) string {
	folder := parts.ShortDir(t)
	program := parts.BuildIstio(t, "./dnsproxy")
	resolvConf := filepath.Join(folder, "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver "+dnsUpstream+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	process := exec.Command("unshare", "-m", "sh", "-c",
		`mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolvConf, program, address,
		fmt.Sprint(dnsNames))
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
	return address
}
