package agent

import (
	"context"
	"strings"
	"time"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// presentedPause is the shortest time between two looks: at a start Envoy acknowledges much.
const presentedPause = time.Second

// presented follows the certificates that Envoy presents from files that it reads itself. Envoy is
// asked, not the files: the agent may not read them, and Envoy keeps a certificate whose
// replacement it refuses. It is asked when it has acknowledged secrets, or what uses them, and when
// epochs change.
type presented struct {
	part.Readiness
	agent *Agent
	wake  chan struct{} // holds one
}

func newPresented(a *Agent) *presented {
	return &presented{agent: a, wake: make(chan struct{}, 1)}
}

// Name is the part's name.
func (*presented) Name() string { return "presented certificates" }

// Run implements part.Part.
func (p *presented) Run(ctx context.Context) error {
	p.MarkReady()
	for {
		changed := p.agent.proxy.Changed()
		failed := part.Retry(p.look(ctx))
		pause := time.After(presentedPause)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-p.wake:
		case <-failed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		}
	}
}

// look asks the live Envoy, if secrets in files are in use. While none is live, the last answer
// stays.
func (p *presented) look(ctx context.Context) error {
	live, ok := p.agent.proxy.Epoch()
	if !ok {
		return nil
	}
	users, asks := map[string][]string{}, false
	for name, origins := range p.agent.discovery.SecretUsers() {
		asks = asks || strings.HasPrefix(name, fileCertificates)
		for _, origin := range origins {
			users[name] = append(users[name], origin.String())
		}
	}
	if !asks {
		p.agent.identity.SetPresented(nil, users)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	found, err := envoy.NewAdmin(live.AdminAddress).SecretsNamed(ctx, fileCertificates+".*")
	if err != nil {
		p.agent.logOf("identity").Debug("cannot read the certificates that Envoy presents", "error",
			err)
		return err
	}
	for name := range found {
		if users[name] == nil { // of a listener that drains
			delete(found, name)
		}
	}
	p.agent.identity.SetPresented(found, users)
	return nil
}

// fileCertificates is the prefix of the names of certificates in files.
const fileCertificates = "file-cert:"

// acknowledged is an xds.Observer that also wakes presented.
type acknowledged struct {
	xds.Observer
	presented *presented
}

// Accepted implements xds.Observer.
func (o acknowledged) Accepted(from xds.Stream, typeURL, version string) {
	o.Observer.Accepted(from, typeURL, version)
	switch typeURL {
	case resource.SecretType, resource.ListenerType, resource.ClusterType:
		select {
		case o.presented.wake <- struct{}{}:
		default: // it is about to look
		}
	}
}
