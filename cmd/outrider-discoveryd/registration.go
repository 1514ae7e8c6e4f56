package main

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/kubernetes"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// newRegistration returns the server that registers workloads, nil if [registration] is off.
func newRegistration(b *base, c *config.Discoveryd) (*registration.Server, error) {
	if !c.Registration.Enabled {
		return nil, nil
	}
	store, err := newStore(c)
	if err != nil {
		return nil, err
	}
	return registration.New(registration.Options{Store: store, Grace: c.Registration.GracePeriod,
		Board: b.board, Logger: b.logOf("registration")}), nil
}

// newStore returns the store of registered workloads. The configuration has been checked.
func newStore(c *config.Discoveryd) (registration.Store, error) {
	if c.Registration.Store != "kubernetes" {
		return nil, fmt.Errorf("registration.store %s is not yet in this version",
			c.Registration.Store)
	}
	first := slices.IndexFunc(c.Sources, func(s *config.Source) bool { return s.Type == "kubernetes" })
	s := c.Sources[first]
	return kubernetes.NewEntries(kubernetes.Options{Name: s.Name, Kubeconfig: s.Kubeconfig,
		Namespaces: s.Namespaces})
}
