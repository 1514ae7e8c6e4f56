package agent

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// presentedPause is the minimum time between two queries of Envoy's certificates. Each ACK triggers
// a query, and a starting Envoy sends many.
const presentedPause = time.Second

// presented observes the certificates that Envoy reads from files itself. It queries Envoy instead
// of reading the files: the agent may not be able to read them, and Envoy retains a certificate
// whose replacement it refuses. It queries Envoy after an ACK of secrets or of listeners or
// clusters, and when epochs change.
type presented struct {
	lifecycle.Readiness
	identity     *identity.Manager
	discovery    *discovery.Server
	supervisor   *epoch.Supervisor
	acknowledged <-chan struct{}
	log          *slog.Logger
}

// Name returns the component's name.
func (*presented) Name() string { return "presented certificates" }

// Run implements lifecycle.Component.
func (p *presented) Run(ctx context.Context) error {
	p.MarkReady()
	for {
		changed := p.supervisor.Changed()
		failed := lifecycle.RetryTimer(p.look(ctx))
		pause := time.After(presentedPause)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-p.acknowledged:
		case <-failed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		}
	}
}

// look queries the live Envoy, if the mesh configuration uses secrets in files, and passes the
// result to the identity manager. While no Envoy is live, the last result remains.
func (p *presented) look(ctx context.Context) error {
	live, ok := liveEpoch(p.supervisor)
	if !ok {
		return nil
	}
	users, requested := map[string][]string{}, false
	for name, origins := range p.discovery.ObjectsUsingSecrets() {
		requested = requested || strings.HasPrefix(name, fileCertificates)
		for _, origin := range origins {
			users[name] = append(users[name], origin.String())
		}
	}
	if !requested {
		p.identity.SetEnvoyFileCertificates(nil, users)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	found, err := envoy.NewAdmin(live.AdminAddress).SecretsMatching(ctx, fileCertificates+".*")
	if err != nil {
		p.log.Debug("cannot read the certificates that Envoy presents", "error", err)
		return err
	}
	for name := range found {
		if users[name] == nil { // only a draining listener still uses the secret
			delete(found, name)
		}
	}
	p.identity.SetEnvoyFileCertificates(found, users)
	return nil
}

// fileCertificates is the prefix of the names of secrets with certificates in files.
const fileCertificates = "file-cert:"

// acknowledged is an xds.Observer that also notifies the component presented of ACKs.
type acknowledged struct {
	xds.Observer
	notify chan<- struct{} // buffered
}

// OnAck implements xds.Observer.
func (o acknowledged) OnAck(from xds.Stream, typeURL, version string) {
	o.Observer.OnAck(from, typeURL, version)
	switch typeURL {
	case resource.SecretType, resource.ListenerType, resource.ClusterType:
		notify(o.notify)
	}
}
