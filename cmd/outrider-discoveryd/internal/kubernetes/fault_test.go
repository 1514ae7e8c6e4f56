package kubernetes

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// testRestart restarts the API server. While the server is down, the source retains its objects and
// reports the failure. Later it delivers only the changes.
func testRestart(t *testing.T, c *cluster.Cluster) {
	at := networkingPath + namespace(c, "restart") + "/serviceentries"
	c.Create(at, serviceEntry("one", "one.example"))
	c.Create(at, serviceEntry("two", "two.example"))
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret")})
	awaitSynced(t, s)
	before := r.Paths()
	c.RestartAPIServer(func(string) {
		parts.Eventually(t, limit, "the failure is reported", func() bool {
			return s.Status().Err != nil
		})
		if !slices.Equal(r.Paths(), before) || r.UpdateCount() != 1 {
			t.Errorf("without API server: %q", r.Paths())
		}
	})
	parts.Eventually(t, limit, "the API server is connected again", func() bool {
		return s.Status().Err == nil
	})
	c.Send(http.MethodDelete, at+"/one", "")
	c.Create(at, serviceEntry("three", "three.example"))
	r.await(t, "kubernetes:ServiceEntry/restart/three", "three.example")
	if _, ok := r.Input("kubernetes:ServiceEntry/restart/one"); ok || r.CompleteUpdateCount() != 1 {
		t.Errorf("%d batches with all: %q", r.CompleteUpdateCount(), r.Paths())
	}
	c.Send(http.MethodDelete, at+"/two", "")
	c.Send(http.MethodDelete, at+"/three", "")
}

// testCompaction compacts etcd, so that a watch cannot continue at its version. The source lists
// all objects instead, and delivers the changes made while no watch ran.
func testCompaction(t *testing.T, c *cluster.Cluster) {
	at := networkingPath + namespace(c, "compaction") + "/serviceentries"
	c.Create(at, serviceEntry("one", "one.example"))
	c.Create(at, serviceEntry("two", "two.example"))
	p := newProxy(t, c)
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, p.address(), "secret")})
	awaitSynced(t, s)
	p.cutAfter.Store(1)
	p.drop()
	c.Send(http.MethodDelete, at+"/one", "")
	c.Create(at, serviceEntry("three", "three.example"))
	c.CompactEtcd()
	c.RestartAPIServer(nil) // the API server's cache also loses its history
	parts.Eventually(t, limit, "the failure is reported", func() bool {
		return s.Status().Err != nil
	})
	p.cutAfter.Store(0)
	p.drop()
	r.await(t, "kubernetes:ServiceEntry/compaction/three", "three.example")
	parts.Eventually(t, limit, "the other is removed", func() bool {
		_, ok := r.Input("kubernetes:ServiceEntry/compaction/one")
		return !ok
	})
	c.Send(http.MethodDelete, at+"/two", "")
	c.Send(http.MethodDelete, at+"/three", "")
}

// testToken revokes the source's token, which the source reports, and then writes a new one into
// the kubeconfig, which the source uses without a restart.
func testToken(t *testing.T, c *cluster.Cluster) {
	ns := namespace(c, "token")
	at := networkingPath + ns + "/serviceentries"
	c.Create(at, serviceEntry("one", "one.example"))
	c.SetAPIServerTokens("secret", "first")
	c.RestartAPIServer(nil)
	kubeconfig := c.Kubeconfig(t, c.APIServerAddress(), "first")
	s, r := startSource(t, Options{Kubeconfig: kubeconfig})
	awaitSynced(t, s)
	before := r.Paths()
	c.SetAPIServerTokens("secret", "second")
	c.RestartAPIServer(nil)
	parts.Eventually(t, limit, "the revoked token is reported", func() bool {
		return apierrors.IsUnauthorized(s.Status().Err)
	})
	if !slices.Equal(r.Paths(), before) {
		t.Errorf("with a revoked token: %q", r.Paths())
	}
	c.WriteKubeconfig(kubeconfig, c.APIServerAddress(), "second")
	c.Create(at, serviceEntry("two", "two.example"))
	r.await(t, "kubernetes:ServiceEntry/token/two", "two.example")
	parts.Eventually(t, limit, "no failure remains", func() bool { return s.Status().Err == nil })
	c.Send(http.MethodDelete, at+"/one", "")
	c.Send(http.MethodDelete, at+"/two", "")
}

// testCutLists closes connections in the middle of lists. The source must not accept an incomplete
// list.
func testCutLists(t *testing.T, c *cluster.Cluster) {
	at := networkingPath + namespace(c, "cut") + "/serviceentries"
	const many = pageSize + 100 // more objects than fit on a page
	for i := range many {
		c.Create(at, serviceEntry(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d.example", i)))
	}
	p := newProxy(t, c)
	p.cutAfter.Store(200_000) // bytes: cuts lists in the first or in the second page
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, p.address(), "secret"),
		Namespaces: []string{"cut"}})
	parts.Eventually(t, limit, "lists were cut", func() bool {
		return p.cuts.Load() >= 3 && s.Status().Err != nil
	})
	if s.Status().Synced || r.UpdateCount() != 0 {
		t.Errorf("synchronised with %d objects", len(r.Paths()))
	}
	p.cutAfter.Store(0)
	awaitSynced(t, s)
	if n := len(r.Paths()); n != many || r.UpdateCount() != 1 {
		t.Errorf("%d objects in %d batches, want %d in one", n, r.UpdateCount(), many)
	}
	c.Send(http.MethodDelete, at, "")
	parts.Eventually(t, limit, "a watch that reports all removals is believed", func() bool {
		return len(r.Paths()) == 0
	})
}

// testSlow delays the responses of the API server. The source waits for them without an error.
func testSlow(t *testing.T, c *cluster.Cluster) {
	at := networkingPath + namespace(c, "slow") + "/serviceentries"
	c.Create(at, serviceEntry("one", "one.example"))
	p := newProxy(t, c)
	p.delay.Store(int64(100 * time.Millisecond))
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, p.address(), "secret"),
		Namespaces: []string{"slow"}})
	awaitSynced(t, s)
	if n := len(r.Paths()); n != 1 {
		t.Errorf("%d objects", n)
	}
	c.Create(at, serviceEntry("two", "two.example"))
	r.await(t, "kubernetes:ServiceEntry/slow/two", "two.example")
	if err := s.Status().Err; err != nil {
		t.Error(err)
	}
	c.Send(http.MethodDelete, at+"/two", "")
}

// testOlderData restores the API server from a backup. The source delivers the older data.
func testOlderData(t *testing.T, c *cluster.Cluster) {
	ns := namespace(c, "older")
	at := networkingPath + ns + "/serviceentries"
	c.Create(at, serviceEntry("one", "one.example"))
	c.Create(at, serviceEntry("two", "two.example"))
	backup := t.TempDir() + "/backup"
	copyFolder := func(from, to string) {
		t.Helper()
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			t.Fatalf("copy: %v %s", err, out)
		}
	}
	c.RestartAPIServer(func(data string) { copyFolder(data, backup) })
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret"),
		Namespaces: []string{ns}})
	awaitSynced(t, s)
	c.MergePatch(at+"/one", `{"metadata": {"labels": {"new": "yes"}}}`)
	// increases the distance between the versions in the backup and the current ones
	for i := range 20 {
		c.Create(at, serviceEntry(fmt.Sprintf("later%d", i), "later.example"))
	}
	parts.Eventually(t, limit, "all objects are there", func() bool { return len(r.Paths()) == 22 })
	r.await(t, "kubernetes:ServiceEntry/older/one", `"new":"yes"`)
	c.RestartAPIServer(func(data string) {
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		copyFolder(backup, data)
	})
	parts.Eventually(t, limit, "the older state is accepted", func() bool {
		in, _ := r.Input("kubernetes:ServiceEntry/older/one")
		return len(r.Paths()) == 2 && !strings.Contains(string(in.Text), "new")
	})
	c.Create(at, serviceEntry("next", "next.example"))
	r.await(t, "kubernetes:ServiceEntry/older/next", "next.example")
}

// testEmpty deletes all data of the API server. Running sources retain their objects until a
// reload. A source that starts while the custom resource definitions are missing reports them.
func testEmpty(t *testing.T, c *cluster.Cluster) {
	kubeconfig := c.Kubeconfig(t, c.APIServerAddress(), "secret")
	s, objects := startSource(t, Options{Kubeconfig: kubeconfig})
	r, services := startRegistry(t, Options{Kubeconfig: kubeconfig,
		Namespaces: []string{"services", "default"}})
	awaitSynced(t, s)
	awaitSynced(t, r)
	before, had := objects.Paths(), services.Paths()
	if len(before) < 3 || len(had) < 5 {
		t.Fatalf("objects %q, services %q", before, had)
	}
	c.RestartAPIServer(func(data string) {
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
	})
	parts.Eventually(t, limit, "the missing kind is reported", func() bool {
		err := s.Status().Err
		return err != nil && strings.Contains(err.Error(), "ServiceEntry")
	})
	early, found := startSource(t, Options{Kubeconfig: kubeconfig})
	awaitSynced(t, early)
	if problem := early.Status().Problem; !strings.Contains(problem, "no definition of ") ||
		!strings.Contains(problem, "ServiceEntry") || len(found.Paths()) > 0 {
		t.Errorf("a start without definitions: %q", problem)
	}
	c.CreateCRDs()
	parts.Eventually(t, limit, "the empty list is reported", func() bool {
		status := s.Status()
		return status.Err == nil && strings.Contains(status.Problem, fmt.Sprintf(
			"the list of kind ServiceEntry is empty: %d of before remain in force", len(before)))
	})
	parts.Eventually(t, limit, "the registry's empty lists are reported", func() bool {
		problem := r.Status().Problem
		return strings.Contains(problem, "kind Service of namespace services is empty") &&
			strings.Contains(problem, "kind Pod of namespace services is empty")
	})
	namespace(c, "after")
	c.Create(networkingPath+"after/serviceentries", serviceEntry("new", "new.example"))
	objects.await(t, "kubernetes:ServiceEntry/after/new", "new.example")
	found.await(t, "kubernetes:ServiceEntry/after/new", "new.example")
	parts.Eventually(t, limit, "all kinds are defined", func() bool {
		return early.Status().Problem == ""
	})
	if got := objects.Paths(); len(got) != len(before)+1 {
		t.Errorf("after an empty list: %q, want %q and the new one", got, before)
	}
	if got := services.Paths(); !slices.Equal(got, had) {
		t.Errorf("after an empty list: %q, want %q", got, had)
	}
	s.RemoveRetainedInputs()
	r.RemoveRetainedInputs()
	parts.Eventually(t, limit, "the lists are accepted", func() bool {
		return slices.Equal(objects.Paths(), []string{"kubernetes:ServiceEntry/after/new"}) &&
			slices.Equal(services.Paths(), []string{"kubernetes:Service/default/kubernetes"})
	})
	parts.Eventually(t, limit, "no problem remains", func() bool {
		return s.Status().Problem+r.Status().Problem == ""
	})
}
