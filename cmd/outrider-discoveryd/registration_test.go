package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

const (
	vmNamespace = "vm"
	vmEntry     = "web-10.9.9.9"
	vmGrace     = 5 * time.Second
	entriesPath = "/apis/networking.istio.io/v1/namespaces/vm/workloadentries"
	vmGroup     = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: vm}
spec:
  metadata: {labels: {app: web, tier: group}, annotations: {team: shop}}
  template: {serviceAccount: web, ports: {http: 8080}, weight: 3, labels: {app: t, from: t}}
`
)

// TestRegistration runs two outrider-discoveryds and a real istiod, which register workloads in the
// same API server and take over each other's workloads.
func TestRegistration(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	istiod, _ := c.StartIstiod("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=" + vmGrace.String())
	c.Create("/api/v1/namespaces", "metadata: {name: vm}")
	for _, account := range []string{"web", "other"} {
		c.Create("/api/v1/namespaces/vm/serviceaccounts", "metadata: {name: "+account+"}")
	}
	r := &registrations{Cluster: c, istiod: istiod, token: c.Token(vmNamespace, "web")}
	tables := fmt.Sprintf("[auth]\nkubernetes_token_review = true\n[[source]]\n"+
		"type = \"kubernetes\"\nkubeconfig = %q\n", permitted(t, c))
	r.one, r.two = startRegistrar(t, tables), startRegistrar(t, tables)
	t.Run("refusals", r.testRefusals)
	t.Run("beside istiod", r.testBesideIstiod)
	t.Run("moves", r.testMoves)
	t.Run("dead server", r.testDeadServer)
	if os.Getenv("OUTRIDER_TEST_FULL") != "" {
		r.one = startRegistrar(t, tables)
		t.Run("fleet", r.testFleet)
	}
}

type registrations struct {
	*cluster.Cluster
	istiod   string
	token    string
	one, two registrar
}

// gone waits until the entry vmEntry is removed, and returns how long after since that happens.
func (r *registrations) gone(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	parts.Eventually(t, time.Minute, "the entry is removed", func() bool {
		return r.WorkloadEntry(vmNamespace, vmEntry) == nil
	})
	return time.Since(since)
}

func (r *registrations) testRefusals(t *testing.T) {
	refused := func(v *vm, secure bool, code codes.Code, want string) {
		t.Helper()
		address := r.one.plaintext
		if secure {
			address = r.one.address
		}
		_, err := v.open(address, secure)
		if status.Code(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %v %q", err, code, want)
		}
	}
	web := newVM(t, r.token, nil)
	refused(web, true, codes.FailedPrecondition, "cannot find WorkloadGroup vm/web")
	r.Create("/apis/networking.istio.io/v1/namespaces/vm/workloadgroups", vmGroup)
	refused(web, false, codes.PermissionDenied, "registration needs an identity")
	refused(newVM(t, r.Token(vmNamespace, "other"), map[string]any{"SERVICE_ACCOUNT": "other"}), true,
		codes.PermissionDenied, `WorkloadEntry vm/web-10.9.9.9 is of service account "web"`)
	refused(newVM(t, r.token, map[string]any{"NETWORK": "not a name"}), true, codes.InvalidArgument,
		"is not a valid name of a WorkloadEntry")
	if e := r.WorkloadEntry(vmNamespace, vmEntry); e != nil {
		t.Errorf("a refused client has registered %+v", e)
	}
	if text := logOf(r.one.file); !strings.Contains(text, "refused registration") {
		t.Errorf("no line about refusals in:\n%s", text)
	}
}

var volatile = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|lastProbeTime|` +
	`lastTransitionTime|istio.io/connectedAt|istio.io/disconnectedAt|` +
	`istio.io/workloadController)": ?"[^"]*"`)

// object returns the entry vmEntry as JSON, without fields that differ between registrations.
func (r *registrations) object(t *testing.T) string {
	t.Helper()
	var o map[string]any
	if !r.Get(entriesPath+"/"+vmEntry, &o) {
		t.Fatal("there is no entry")
	}
	meta := o["metadata"].(map[string]any)
	delete(meta, "managedFields")
	delete(meta, "generation")
	text, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return volatile.ReplaceAllString(string(text), `"$1": "…"`)
}

// testBesideIstiod compares the states of an entry that istiod writes with those that this program
// writes, and then moves the workload between istiod and this program.
func (r *registrations) testBesideIstiod(t *testing.T) {
	web := newVM(t, r.token, nil)
	states := func(address string) (all []string) {
		t.Helper()
		s := r.connect(t, web, address)
		all = append(all, "registered", r.object(t))
		for _, problem := range []string{"", "exit status 1", ""} {
			want := strings.TrimSpace(map[bool]string{true: "True", false: "False"}[problem == ""] + " " +
				problem)
			r.awaitHealth(t, s, problem, want)
			all = append(all, want, r.object(t))
		}
		disconnected := func() bool {
			e := r.WorkloadEntry(vmNamespace, vmEntry)
			return e != nil && e.ConnectedAt() == ""
		}
		for s.end(); !parts.Poll(10*time.Second, disconnected); s.end() {
			s = r.connect(t, web, address) // istiod gives up its write after some conflicts
		}
		all = append(all, "disconnected", r.object(t))
		if r.WorkloadEntry(vmNamespace, vmEntry) != nil {
			r.Send(http.MethodDelete, entriesPath+"/"+vmEntry, "")
		}
		return all
	}
	want := states(r.istiod)
	if diff := cmp.Diff(want, states(r.one.address)); diff != "" {
		t.Errorf("(-istiod +this program):\n%s", diff)
	}

	s := r.connect(t, web, r.istiod)
	r.awaitHealth(t, s, "", "True")
	entry := r.WorkloadEntry(vmNamespace, vmEntry)
	seen := r.WatchWorkloadEntry(vmNamespace, vmEntry, cluster.WorkloadEntry.UIDAndHealth)
	for _, address := range []string{r.one.address, r.istiod, r.two.address} {
		controller := r.WorkloadEntry(vmNamespace, vmEntry).Controller()
		next := r.connect(t, web, address)
		next.report("")
		s.end()
		s = next
		parts.Eventually(t, time.Minute, "another server has the entry", func() bool {
			e := r.WorkloadEntry(vmNamespace, vmEntry)
			return e != nil && e.Controller() != controller && e.ConnectedAt() != ""
		})
	}
	<-time.After(vmGrace + time.Second) // a removal would happen within the grace period
	if diff := cmp.Diff([]string{entry.Metadata.UID + " True"}, seen()); diff != "" {
		t.Errorf("states of the entry (-want +got):\n%s", diff)
	}
	begun := time.Now()
	s.end()
	r.gone(t, begun)
}

// connect opens a stream of a workload. It repeats the attempt with istiod, which refuses streams
// while its cache of the API server is outdated.
func (r *registrations) connect(t *testing.T, v *vm, address string) (s *vmStream) {
	t.Helper()
	if address != r.istiod {
		return v.connect(address)
	}
	parts.EventuallyWithObservation(t, time.Minute, "istiod registers the workload", func() (bool, string) {
		var err error
		s, err = v.open(address, true)
		return err == nil, fmt.Sprint(err)
	})
	return s
}

// awaitHealth reports the health of a workload until the entry has it. It repeats the report,
// because istiod may lose one.
func (r *registrations) awaitHealth(t *testing.T, s *vmStream, problem, want string) {
	t.Helper()
	var sent time.Time
	parts.Eventually(t, time.Minute, "the health is "+want, func() bool {
		if time.Since(sent) > 2*time.Second {
			s.report(problem)
			sent = time.Now()
		}
		e := r.WorkloadEntry(vmNamespace, vmEntry)
		return e != nil && e.Health() == want
	})
}

// testMoves moves a workload between two servers 20 times. Its entry is never removed or unhealthy.
func (r *registrations) testMoves(t *testing.T) {
	web := newVM(t, r.token, nil)
	s := web.connect(r.one.address)
	s.report("")
	entry := r.AwaitWorkloadEntryHealth(t, time.Minute, vmNamespace, vmEntry, "True")
	seen := r.WatchWorkloadEntry(vmNamespace, vmEntry, cluster.WorkloadEntry.UIDAndHealth)
	for i := range 20 {
		address := []string{r.two.address, r.one.address}[i%2]
		// Alternate: the new stream begins before or after the end of the old one.
		if i%4 < 2 {
			next := web.connect(address)
			s.end()
			s = next
		} else {
			s.end()
			s = web.connect(address)
		}
		s.report("")
	}
	<-time.After(vmGrace + 2*time.Second) // a removal would happen within the grace period
	if diff := cmp.Diff([]string{entry.Metadata.UID + " True"}, seen()); diff != "" {
		t.Errorf("states of the entry (-want +got):\n%s", diff)
	}
	if e := r.WorkloadEntry(vmNamespace, vmEntry); e == nil || e.ConnectedAt() == "" {
		t.Errorf("the entry is not connected: %+v", e)
	}
	begun := time.Now()
	s.end()
	t.Logf("removed %v after the end of the stream", r.gone(t, begun))
}

// testDeadServer kills a server, and ends a workload that was connected to it, at the same moment:
// the other server removes the workload's entry. The entry of a workload that moves to the other
// server remains.
func (r *registrations) testDeadServer(t *testing.T) {
	web := newVM(t, r.token, nil)
	moving := newVM(t, r.token, map[string]any{"INSTANCE_IPS": "10.9.9.20"})
	s := web.connect(r.one.address)
	moving.connect(r.one.address)
	seen := r.WatchWorkloadEntry(vmNamespace, "web-10.9.9.20", cluster.WorkloadEntry.UIDAndHealth)
	begun := time.Now()
	if err := syscall.Kill(r.one.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.end()
	moving.connect(r.two.address)
	t.Logf("removed %v after server and workload were killed", r.gone(t, begun))
	parts.Eventually(t, time.Minute, "the removal is logged", func() bool {
		return strings.Contains(logOf(r.two.file), `server_lost`)
	})
	if got := seen(); len(got) != 1 {
		t.Errorf("states of the entry of the workload that moved: %q", got)
	}
}

// testFleet measures how long 1,000 workloads take to register with one server, and how long their
// removal takes after the server and the workloads were killed.
func (r *registrations) testFleet(t *testing.T) {
	const size = 1000
	count := func() (connected int) {
		var list struct {
			Items []cluster.WorkloadEntry
		}
		r.Get(entriesPath, &list)
		for _, e := range list.Items {
			if e.ConnectedAt() != "" {
				connected++
			}
		}
		return connected
	}
	before := count()
	begun := time.Now()
	streams := make([]*vmStream, size)
	var group errgroup.Group
	for i := range size {
		v := newVM(t, r.token, map[string]any{"INSTANCE_IPS": fmt.Sprintf("10.8.%d.%d", i>>8, i&255)})
		group.Go(func() (err error) {
			streams[i], err = v.open(r.one.address, true)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d workloads are served after %v", size, time.Since(begun))
	parts.Eventually(t, 3*time.Minute, "all are registered", func() bool {
		return count() == before+size
	})
	t.Logf("all are registered after %v", time.Since(begun))
	begun = time.Now()
	if err := syscall.Kill(r.one.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		s.end()
	}
	parts.Eventually(t, 3*time.Minute, "all are removed", func() bool { return count() <= before })
	t.Logf("all are removed after %v, with a grace period of %v", time.Since(begun), vmGrace)
}
