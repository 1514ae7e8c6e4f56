package debug

import (
	"context"
	"net/netip"
	"net/url"
)

// maxProblems bounds the number of problems in an answer.
const maxProblems = 1000

func (d *Debugger) pushes(context.Context, url.Values) (any, error) {
	streams, contents := d.options.XDS.Stats(), d.options.Discovery.Stats()
	return map[string]any{"xds": streams, "debounce": contents.Debounce, "push": contents.Push,
		"views": contents.Views}, nil
}

func (d *Debugger) config(context.Context, url.Values) (any, error) {
	problems := d.options.Discovery.Problems()
	answer := map[string]any{"objects": d.options.Discovery.Stats().Objects,
		"problem_count": len(problems), "problems": problems[:min(len(problems), maxProblems)]}
	if d.options.Sources != nil {
		answer["sources"] = d.options.Sources()
	}
	return answer, nil
}

// host is the JSON form of a hostname in the registry.
type host struct {
	Host      string   `json:"host"`
	Addresses []string `json:"addresses"`
	Ports     []port   `json:"ports"`
}

type port struct {
	Number uint32 `json:"number"`
	Name   string `json:"name"`
}

// names returns the same information as istiod's ndsz, without the short names of Kubernetes
// Services.
func (d *Debugger) names(ctx context.Context, query url.Values) (any, error) {
	node, err := d.node(ctx, query.Get("proxyID"))
	if err != nil {
		return nil, err
	}
	names, err := d.options.Discovery.DNSNamesOf(node)
	if err != nil {
		return nil, err
	}
	type info struct {
		IPs []netip.Addr `json:"ips"`
	}
	table := make(map[string]info, len(names))
	for _, n := range names {
		table[n.Host] = info{n.Addresses}
	}
	return map[string]any{"table": table}, nil
}

func (d *Debugger) registry(context.Context, url.Values) (any, error) {
	all := []host{}
	for _, name := range d.options.Discovery.DNSNames(nil) {
		h := host{Host: name.Host, Addresses: []string{}}
		for _, address := range name.Addresses {
			h.Addresses = append(h.Addresses, address.String())
		}
		for _, p := range name.Ports {
			h.Ports = append(h.Ports, port{p.Number, p.Name})
		}
		all = append(all, h)
	}
	return all, nil
}
