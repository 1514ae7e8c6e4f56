package main

import (
	"slices"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/consul"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/kubernetes"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// newRegistration returns the component that registers workloads; nil if [registration] is off.
func newRegistration(b *base, c *config.Discoveryd, server *discovery.Server,
	all []source.Source) (*registration.Server, error) {
	if !c.Registration.Enabled {
		return nil, nil
	}
	store, err := newStore(c, server, all)
	if err != nil {
		return nil, err
	}
	return registration.New(registration.Options{Store: store, GracePeriod: c.Registration.GracePeriod,
		Conditions: b.board, Logger: b.logOf("registration")}), nil
}

// newStore returns the store of registered workloads. It relies on a checked configuration, which
// has a source or registry of the store's type.
func newStore(c *config.Discoveryd, server *discovery.Server, all []source.Source) (
	registration.Store, error) {
	if c.Registration.Store == "consul" {
		for _, s := range all {
			if registry, ok := s.(*consul.Registry); ok {
				return consul.NewStore(registry, server.WorkloadGroup), nil
			}
		}
	}
	first := slices.IndexFunc(c.Sources, func(s *config.Source) bool { return s.Type == "kubernetes" })
	s := c.Sources[first]
	return kubernetes.NewEntryStore(kubernetes.Options{Name: s.Name, Kubeconfig: s.Kubeconfig,
		Namespaces: s.Namespaces})
}
