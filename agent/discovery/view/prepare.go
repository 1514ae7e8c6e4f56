package view

import (
	"runtime"
	"sync"
	"sync/atomic"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// manyHosts is the minimum number of services that other processors help to translate.
const manyHosts = 64

// prepare translates services that are not cached while the caller does something else, on the
// other processors. The caller must call wait before it uses the cache, and may call it again. A
// service with which a translation panics is left to the caller.
func (c *Cache) prepare(w *model.Mesh, node model.Node, services []*model.Service) (wait func()) {
	workers := runtime.GOMAXPROCS(0) - 1
	if workers < 1 || len(services) < manyHosts {
		return func() {}
	}
	m := w.MeshConfig()
	missing := make([]translated, 0, len(services))
	for _, service := range services {
		t := translated{service: service, rule: w.DestinationRule(service, node)}
		t.reader = translate.ClusterVariantKey(m, service, t.rule, node)
		if c.find(t) == nil {
			missing = append(missing, t)
		}
	}
	done := make([]bool, len(missing))
	var next atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(missing)); i = next.Add(1) - 1 {
				done[i] = missing[i].translate(m, node)
			}
		})
	}
	return sync.OnceFunc(func() {
		running.Wait()
		for i, t := range missing {
			if done[i] {
				c.byHost[t.service.Host] = append(c.byHost[t.service.Host], t)
			}
		}
	})
}

// translate sets the result. It returns false if the translation panics.
func (t *translated) translate(m *mesh.Config, node model.Node) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	t.out = translate.ServiceClusters(m, t.service, t.rule, node)
	return true
}
