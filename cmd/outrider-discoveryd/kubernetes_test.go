package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// TestProgram_ServesKubernetes runs the program with a real API server. A client receives the
// endpoints of a Service, and the program writes the validity of objects to their status. Then the
// test compares the resources made from objects in the API server with those made from files.
func TestProgram_ServesKubernetes(t *testing.T) {
	c := cluster.Start(t)
	c.Create("/api/v1/namespaces/default/services", "metadata: {name: web}\n"+
		"spec: {ports: [{name: http, port: 80}]}")
	c.Create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", "metadata: {name: web, "+
		"labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"+
		"ports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.7.7.7]}]")
	const entries = "/apis/networking.istio.io/v1/namespaces/default/serviceentries"
	for name, protocol := range map[string]string{"valid": "HTTP", "invalid": "NONSENSE"} {
		c.Create(entries, "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"+
			"metadata: {name: "+name+"}\nspec: {hosts: ["+name+".example], resolution: STATIC, "+
			"location: MESH_INTERNAL, ports: [{number: 80, name: p, protocol: "+protocol+"}], "+
			"endpoints: [{address: 10.0.0.1}]}")
	}
	directory := parts.ShortDir(t)
	xds, monitoring := parts.FreePort(t), parts.FreePort(t)
	file := filepath.Join(directory, "discoveryd.toml")
	write(t, file, fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[[source]]
type = "kubernetes"
kubeconfig = %q
write_status = true
[[registry]]
type = "kubernetes"
`, xds, monitoring, c.Kubeconfig(t, c.APIServerAddress(), "secret")))
	program := exec.Command(os.Args[0], "--config", file)
	program.Env = append(os.Environ(), "OUTRIDER_DISCOVERYD=1")
	program.Stderr = os.Stderr
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Process.Kill(); _ = program.Wait() })
	parts.EventuallyWithObservation(t, time.Minute, "ready", func() (bool, string) {
		status, body := ask("GET", fmt.Sprintf("http://127.0.0.1:%d/ready", monitoring), "", "")
		return status == http.StatusOK, body
	})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	load, err := adsload.Start(ctx, adsload.Options{
		Targets: []string{fmt.Sprintf("127.0.0.1:%d", xds)},
		Clients: 1, Delta: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		t.Fatal(err)
	}
	mark := load.WatchContent(adsload.EndpointType, []byte("10.7.7.8"))
	c.MergePatch("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web",
		`{"endpoints": [{"addresses": ["10.7.7.8"]}]}`)
	if _, err := mark.Wait(ctx); err != nil {
		t.Errorf("a changed endpoint does not arrive: %v", err)
	}
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"valid": "True", "invalid": "False"} {
		parts.EventuallyWithObservation(t, time.Minute, name+" is "+want, func() (bool, string) {
			var o struct {
				Status struct {
					Conditions []struct{ Type, Status, Message string }
				}
			}
			c.Get(entries+"/"+name, &o)
			all := o.Status.Conditions
			return len(all) == 1 && all[0].Type == "PassedAnalysis" && all[0].Status == want,
				fmt.Sprint(all)
		})
	}
	t.Run("token review", func(t *testing.T) { testTokenReview(t, c) })
	_ = program.Process.Kill()
	for _, name := range []string{"valid", "invalid"} {
		c.Send(http.MethodDelete, entries+"/"+name, "")
	}
	t.Run("conformance", func(t *testing.T) { testKubernetesConformance(t, c) })
}
