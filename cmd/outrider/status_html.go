package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity/pki"
)

// statusPage is the page of `outrider status --html`. It loads nothing and runs no script.
//
//go:embed status.html
var statusPage string

// mostEpochsShown is the number of epochs on the timeline.
const mostEpochsShown = 8

// htmlStatus is the data of the page. The fields Class are CSS classes: good, warn, bad or "".
type htmlStatus struct {
	Name, Version, Envoy, Now string
	State, StateClass         string
	Ready, ReadyClass         string
	Reload, From              string
	Problems                  []htmlProblem
	Epochs                    []htmlEpoch
	Clusters                  []htmlCluster
	ClustersError             string
	Certificates              []htmlCertificate
	CertificatesError         string
}

type htmlProblem struct{ Severity, Class, Text string }

type htmlCluster struct {
	Name, Class    string
	Healthy, Total int
	Endpoints      []htmlEndpoint
}

type htmlEndpoint struct{ Address, Health, Class string }

type htmlCertificate struct{ Path, Names, Until, Class string }

// printStatusHTML prints the state of the agent and of its Envoy as one self-contained HTML page.
func (a *app) printStatusHTML(ctx context.Context, client *api.Client, s api.Status) error {
	page := htmlStatus{
		Name: agentName(s), Version: s.Version, Envoy: envoyLine(s.Envoy),
		Now:   a.now().Format(time.DateTime + " MST"),
		State: string(s.State), StateClass: htmlClass(stateStyle(s.State)),
		Ready: "ready", ReadyClass: "good", Problems: htmlProblems(s),
	}
	if !s.Ready {
		page.Ready, page.ReadyClass = strings.Join(nonEmpty("not ready", s.NotReadyReason), ": "),
			"bad"
	}
	if s.LastReload != nil {
		page.Reload = fmt.Sprintf("%s, %s ago", s.LastReload.Outcome, a.since(s.LastReload.Time))
	}
	page.Epochs, page.From = htmlEpochs(s.Epochs, a.now())
	var err error
	if page.Clusters, err = htmlClusters(ctx, client); err != nil {
		page.ClustersError = err.Error()
	}
	if page.Certificates, err = htmlCertificates(ctx, client, s.Identities, a.now()); err != nil {
		page.CertificatesError = err.Error()
	}
	parsed, err := template.New("status").Parse(statusPage)
	if err != nil {
		return err
	}
	return parsed.Execute(a.out, page)
}

func htmlClass(s style) string {
	return map[style]string{green: "good", yellow: "warn", red: "bad"}[s]
}

// conditionFailing is the condition about failing backends, whose details are in
// api.Status.FailingBackends.
const conditionFailing = "backend-failing"

// htmlProblems returns the conditions and the problems of the mesh configuration.
func htmlProblems(s api.Status) []htmlProblem {
	var all []htmlProblem
	add := func(severity condition.Severity, text string) {
		all = append(all, htmlProblem{string(severity), htmlClass(severityStyle(severity)), text})
	}
	for _, c := range s.Conditions {
		// The page shows mesh problems and failing backends in sections of their own.
		if c.Code != discovery.ConditionMeshProblems && c.Code != conditionFailing {
			add(c.Severity, c.Sentence)
		}
	}
	for _, p := range problemsOf(s.Problems) {
		add(p.Severity, p.String())
	}
	return all
}

func htmlClusters(ctx context.Context, client *api.Client) ([]htmlCluster, error) {
	status, err := clusterStatuses(ctx, client)
	if err != nil {
		return nil, err
	}
	var all []htmlCluster
	for _, c := range status.Clusters {
		shown := htmlCluster{Name: c.Name, Total: len(c.Hosts), Class: "good"}
		for _, host := range c.Hosts {
			endpoint := htmlEndpoint{Address: host.Address.String(), Health: host.text()}
			if host.healthy() {
				shown.Healthy++
			} else {
				endpoint.Class = "bad"
			}
			shown.Endpoints = append(shown.Endpoints, endpoint)
		}
		switch {
		case shown.Healthy == 0:
			shown.Class = "bad"
		case shown.Healthy < shown.Total:
			shown.Class = "warn"
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(x, y htmlCluster) int { return cmp.Compare(x.Name, y.Name) })
	return all, nil
}

// loadedCertificates has the printed fields of the response to GET /certs of Envoy's admin
// interface.
type loadedCertificates struct {
	Certificates []struct {
		Chain []loadedCertificate `json:"cert_chain"`
		CA    []loadedCertificate `json:"ca_cert"`
	} `json:"certificates"`
}

type loadedCertificate struct {
	Path   string `json:"path"`
	Serial string `json:"serial_number"`
	Names  []struct {
		DNS string `json:"dns"`
		URI string `json:"uri"`
		IP  string `json:"ip_address"`
	} `json:"subject_alt_names"`
	From    time.Time `json:"valid_from"`
	Expires time.Time `json:"expiration_time"`
}

// shownAuthorities is the maximum number of CA certificates in a bundle that the page lists one by
// one. A larger bundle is probably that of the system, with over a hundred CAs, some of which
// expire soon.
const shownAuthorities = 4

// authorities returns the single row for a large bundle of CA certificates.
func authorities(bundle []loadedCertificate, files map[string]string) htmlCertificate {
	return htmlCertificate{Path: bundle[0].origin(files), Until: "-", Class: "good",
		Names: fmt.Sprintf("%d authorities", len(bundle))}
}

// origin returns the file of a certificate, or a note that Outrider sent it to Envoy. files are the
// files of certificates sent over xDS, by serial number without leading zeros.
func (c loadedCertificate) origin(files map[string]string) string {
	if c.Path == "<inline>" { // Envoy received the certificate over xDS
		return cmp.Or(files[strings.TrimLeft(c.Serial, "0")], "sent by Outrider")
	}
	return c.Path
}

func htmlCertificates(ctx context.Context, client *api.Client, identities []api.Identity,
	now time.Time) ([]htmlCertificate, error) {
	var loaded loadedCertificates
	if err := adminJSON(ctx, client, "certs", url.Values{}, &loaded); err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, i := range identities {
		files[i.Serial] = i.File
	}
	return loaded.rows(files, now), nil
}

// rows returns the rows of certificates for the page, without duplicates. A large bundle is one
// row.
func (l loadedCertificates) rows(files map[string]string, now time.Time) []htmlCertificate {
	var all []htmlCertificate
	for _, c := range l.Certificates {
		if len(c.CA) > shownAuthorities {
			all = append(all, authorities(c.CA, files))
			c.CA = nil
		}
		for _, one := range slices.Concat(c.Chain, c.CA) {
			until := one.Expires.Format(time.DateTime + " MST")
			shown := htmlCertificate{Path: one.origin(files), Until: until, Class: "good"}
			var names []string
			for _, name := range one.Names {
				names = append(names, cmp.Or(name.DNS, name.URI, name.IP))
			}
			shown.Names = cmp.Or(strings.Join(names, ", "), "-")
			switch left := one.Expires.Sub(now); {
			case left <= 0:
				shown.Class, shown.Until = "bad", shown.Until+" (expired)"
			case pki.EndsSoon(one.From, one.Expires, now):
				shown.Class, shown.Until = "warn", shown.Until+" (in "+age(left)+")"
			}
			all = append(all, shown)
		}
	}
	slices.SortFunc(all, func(x, y htmlCertificate) int { return cmp.Compare(x.Path, y.Path) })
	return slices.Compact(all)
}
