package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/readfile"
	"outrider.org/outrider/agent/resource"
)

func (a *app) meshExplainCommand() *cobra.Command {
	var request api.MeshExplainRequest
	var headers, files, from []string
	var address, proxy, token, nodeType, meshConfig string
	command := &cobra.Command{
		Use:   "explain HOST[:PORT][/PATH]",
		Short: "Explain what happens to a request, and which objects decide it",
		Long: "Explain follows a request through the configuration that Envoy has: listener,\n" +
			"filter chain, filters of EnvoyFilters, virtual host, route, clusters, endpoints.\n" +
			"It prints the file and line behind each step, which certificates the sides of a\n" +
			"TLS connection present and expect, which policy allows or denies the request,\n" +
			"why a token is refused, and what the command line leaves open, such as weights.\n" +
			"It sends no request. If nothing accepts the request, the last lines are the\n" +
			"reason and the cure, and the exit code is 1.\n\n" +
			"Policies apply to requests that arrive: at the listeners of a gateway, and at\n" +
			"the services of this host behind a sidecar. --from says that a request comes\n" +
			"from elsewhere, and from whom.\n\n" +
			"The port is 80, or 443 with --tls or https://. With --files it needs no agent,\n" +
			"and reads files and folders as \"mesh check\" does.",
		Example: "  outrider mesh explain reviews.example.com/v2\n" +
			"  outrider mesh explain https://shop.example.com --header 'x-user: jason'\n" +
			"  outrider mesh explain shop.example.com:8080/admin --from 203.0.113.7 \\\n" +
			"      --from spiffe://cluster.local/ns/shop/sa/web --jwt token\n" +
			"  outrider mesh explain reviews.example.com:8080 --files ./mesh.d --type sidecar",
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := readTarget(arguments[0], address, headers, &request); err != nil {
				return err
			}
			if err := readProxy(proxy, &request); err != nil {
				return err
			}
			if err := readClient(from, token, &request); err != nil {
				return err
			}
			if len(files) == 0 && command.Flags().Changed("type") {
				return usagef("--type needs --files: the running proxy has a type of its own")
			}
			var said api.MeshExplanation
			var err error
			if len(files) > 0 {
				said, err = a.explainFiles(command.Context(), files, nodeType, meshConfig, request)
			} else {
				client := a.client()
				defer client.Close()
				said, err = client.MeshExplain(command.Context(), request)
			}
			if err != nil {
				return err
			}
			return a.printExplanation(request, said)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&request.Method, "method", "X", "GET", "the request's `method`")
	flags.StringArrayVarP(&headers, "header", "H", nil,
		"a `header` of the request, 'name: value' or name=value; may be repeated")
	flags.StringArrayVar(&from, "from", nil,
		"the request comes from this `client`: its IP address, or the SPIFFE ID of its certificate; "+
			"may be repeated for both")
	flags.StringVar(&token, "jwt", "", "`file` with a JWT that the request has as bearer token")
	flags.BoolVar(&request.TLS, "tls", false, "the client uses TLS, with the host as server name")
	flags.StringVar(&address, "to", "", "the `IP` address that the client connects to")
	flags.StringVar(&proxy, "proxy", "",
		"the `IP:PORT` of an HTTP proxy of the sidecar, to which the client sends the request")
	flags.StringSliceVar(&files, "files", nil,
		"explain what these files and folders would do, without an agent")
	flags.StringVar(&nodeType, "type", "",
		"with --files, the `type` of proxy: sidecar or router (default that of the configuration)")
	flags.StringVar(&meshConfig, "mesh-config", "",
		"with --files, `file` with Istio's MeshConfig (default that of the configuration)")
	return command
}

// readTarget parses the arguments of "mesh explain": the target [http[s]://]HOST[:PORT][/PATH], the
// destination address ("": that of the host) and headers.
func readTarget(target, address string, headers []string, into *api.MeshExplainRequest) error {
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok {
		scheme, rest = "http", target
	}
	if scheme != "http" && scheme != "https" {
		return usagef("%s: the scheme must be http or https", target)
	}
	into.TLS = into.TLS || scheme == "https"
	parsed, err := url.Parse("//" + rest)
	if err != nil || parsed.Hostname() == "" {
		return usagef("%q is not of the form HOST[:PORT][/PATH]", target)
	}
	into.Host, into.Path, into.Port = parsed.Hostname(), parsed.RequestURI(), 80
	if into.TLS {
		into.Port = 443
	}
	if text := parsed.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return usagef("%s: %s is not a valid port; write a number from 1 to 65535", target,
				text)
		}
		into.Port = uint32(port)
	}
	if address != "" {
		if into.DestinationAddress, err = netip.ParseAddr(address); err != nil {
			return usagef("--to %s is not an IP address", address)
		}
		into.DestinationAddress = into.DestinationAddress.Unmap()
	}
	for _, line := range headers {
		at := strings.IndexAny(line, ":=")
		if at < 0 || strings.TrimSpace(line[:at]) == "" {
			return usagef("--header %q is not of the form 'name: value'", line)
		}
		into.Headers = append(into.Headers,
			api.MeshExplainRequestHeader{Name: strings.TrimSpace(line[:at]),
				Value: strings.TrimSpace(line[at+1:])})
	}
	return nil
}

// readProxy sets the HTTP proxy, IP:PORT, to which the client sends the request; "": none.
func readProxy(proxy string, into *api.MeshExplainRequest) error {
	if proxy == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(proxy)
	if err != nil || at.Port() == 0 {
		return usagef("--proxy %s is not of the form IP:PORT", proxy)
	}
	if into.TLS || into.DestinationAddress.IsValid() {
		return usagef("--proxy goes with neither --to nor https, for which clients ask proxies for a " +
			"tunnel (CONNECT), which Envoy refuses with 404")
	}
	host := net.JoinHostPort(into.Host, fmt.Sprint(into.Port))
	into.Headers = append([]api.MeshExplainRequestHeader{{Name: "host", Value: host}}, into.Headers...)
	into.DestinationAddress, into.Port = at.Addr().Unmap(), uint32(at.Port())
	return nil
}

// mostToken bounds the size of a token file, in bytes.
const mostToken = 64 << 10

// readClient parses the addresses and SPIFFE IDs of the client, and reads its JSON Web Token from a
// file ("": none).
func readClient(from []string, token string, into *api.MeshExplainRequest) error {
	for _, text := range from {
		if id, ok := strings.CutPrefix(text, "spiffe://"); ok && id != "" {
			into.ClientSPIFFEID = text
		} else if address, err := netip.ParseAddr(text); err == nil {
			into.Source = address.Unmap()
		} else {
			return usagef("--from %s is neither an IP address nor a SPIFFE ID (spiffe://…)", text)
		}
	}
	if token == "" {
		return nil
	}
	text, err := readfile.Read(token, mostToken)
	if err != nil {
		return err
	}
	value := strings.TrimSpace(string(text))
	if value == "" || strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("the content of %s is not a single token", token)
	}
	into.Headers = append(into.Headers, api.MeshExplainRequestHeader{Name: "authorization",
		Value: "Bearer " + value})
	return nil
}

// explainFiles explains how a proxy with the mesh configuration in files would process a request.
// It needs no running agent.
func (a *app) explainFiles(ctx context.Context, files []string, nodeType, meshConfig string,
	request api.MeshExplainRequest) (api.MeshExplanation, error) {
	options, _, err := a.checkOptions(ctx, meshConfig)
	if err != nil {
		// Without a valid configuration of the agent, defaults apply.
		options = discovery.CheckOptions{MeshConfigFile: meshConfig}
	}
	if nodeType != "" {
		options.NodeType = nodeType
	}
	said, err := discovery.Explain(files, options, request)
	if err != nil {
		return api.MeshExplanation{}, err
	}
	out := api.MeshExplanation{MeshExplainAnswer: said.Answer}
	for _, p := range said.Problems {
		if p.Fix != "" {
			p.Message += "; " + p.Fix
		}
		out.Problems = append(out.Problems, api.MeshProblem{File: p.File, Line: p.Line,
			Object: p.Object, Field: p.Field, Severity: string(p.Severity), Message: p.Message})
	}
	return out, nil
}

// mostOrigins is the maximum number of origins printed for one step.
const mostOrigins = 8

func (a *app) printExplanation(request api.MeshExplainRequest, said api.MeshExplanation) error {
	err := a.print(said, func() { a.showExplanation(request, said) })
	return errors.Join(err, refusedIf(said.Reason != ""))
}

// hostOf returns the request's Host header in parentheses. It returns "" without this header: the
// host is then that of the URL, which is printed anyway.
func hostOf(request api.MeshExplainRequest) string {
	for _, h := range request.Headers {
		if strings.EqualFold(h.Name, "host") {
			return fmt.Sprintf(" (host: %s)", h.Value)
		}
	}
	return ""
}

func (a *app) showExplanation(request api.MeshExplainRequest, said api.MeshExplanation) {
	scheme := "http"
	if request.TLS {
		scheme = "https"
	}
	fmt.Fprintf(a.out, "%s %s://%s%s%s\n", request.Method, scheme,
		net.JoinHostPort(request.Host, fmt.Sprint(request.Port)), request.Path, hostOf(request))
	var before []resource.Origin
	for _, s := range said.Steps {
		fmt.Fprintln(a.out, strings.TrimSpace(a.paint(cell{s.Kind, bold})+" "+s.Name))
		for _, fact := range s.Facts {
			fmt.Fprintf(a.out, "    %s\n", fact)
		}
		if slices.Equal(s.Origins, before) {
			continue // same origins as for the previous step
		}
		before = s.Origins
		for i, o := range s.Origins {
			if i == mostOrigins {
				fmt.Fprintf(a.out, "    from %d more\n", len(s.Origins)-mostOrigins)
				break
			}
			fmt.Fprintf(a.out, "    %s\n", a.paint(cell{"from " + o.String(), dim}))
		}
	}
	for _, text := range said.UnknownFacts {
		fmt.Fprintf(a.out, "%s %s\n", a.paint(cell{"not known:", yellow}), text)
	}
	for _, p := range problemsOf(said.Problems) {
		fmt.Fprintf(a.out, "%s: %s\n", p.Severity, p)
	}
	outcome := string(said.Outcome)
	switch {
	case said.Location != "":
		outcome += fmt.Sprintf(" with %d to %s", said.Status, said.Location)
	case said.Status != 0:
		outcome += fmt.Sprintf(" with status %d", said.Status)
	}
	var shares []string
	for _, t := range said.Clusters {
		if len(said.Clusters) == 1 {
			shares = append(shares, t.Cluster)
		} else {
			shares = append(shares, fmt.Sprintf("%.4g %% %s", t.Percent, t.Cluster))
		}
	}
	if len(shares) > 0 && said.Reason == "" {
		outcome += ": " + strings.Join(shares, ", ")
	}
	if said.Reason == "" {
		fmt.Fprintf(a.out, "=> %s\n", a.paint(cell{outcome, green}))
		return
	}
	fmt.Fprintf(a.out, "=> %s: %s\n", a.paint(cell{outcome, red}), said.Reason)
	if said.Fix != "" {
		fmt.Fprintf(a.out, "   %s\n", said.Fix)
	}
}
