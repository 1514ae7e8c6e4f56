package main

import (
	"encoding/json"
	"regexp"
	"strings"
)

// redacted replaces a secret in a bug report.
const redacted = "[redacted]"

// The rules apply to any text. In doubt they remove text.
var (
	secretNames = `(?:token|password|passwd|passphrase|secret|authorization|cookie|` +
		`api[-_]?key|access[-_]?key|private[-_]?key|credential)s?`
	// harmlessName matches names that contain a secret word but whose value is a location or a
	// name.
	harmlessName = regexp.MustCompile(`(?i)[-_](file|path|name|names|dir|uri|url|type|manager|` +
		`bucket|config|configs|count|ttl|port)$`)
	secretName = regexp.MustCompile(`(?i)(^|[-_.])` + secretNames +
		`([-_]?(value|data|bytes|string|base64))?$`)
	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)

	privateKey = regexp.MustCompile(`(?s)-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY-----.*?` +
		`(-----END ([A-Z0-9 ]*)PRIVATE KEY-----|\z)`)
	webToken   = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*`)
	bearer     = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`)
	userInfo   = regexp.MustCompile(`(://)[^/\s"'@:]*:[^/\s"'@]*@`)
	assignment = regexp.MustCompile(`(?i)("?[A-Za-z0-9_.-]*` + secretNames +
		`[A-Za-z0-9_-]*"?\s*[=:]\s*)("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,;&"'\[{]+)`)
)

// redact removes likely secrets from a file of a report.
func redact(content string) string {
	if trimmed := strings.TrimSpace(content); strings.HasPrefix(trimmed, "{") ||
		strings.HasPrefix(trimmed, "[") {
		decoder := json.NewDecoder(strings.NewReader(trimmed))
		decoder.UseNumber()
		var value any
		if decoder.Decode(&value) == nil && !decoder.More() {
			if text, err := json.MarshalIndent(redactValue(value, false), "", "  "); err == nil {
				return string(text) + "\n"
			}
		}
	}
	return redactText(content)
}

// redactText removes secrets from configuration or log lines.
func redactText(content string) string {
	content = privateKey.ReplaceAllString(content, redacted)
	content = webToken.ReplaceAllString(content, redacted)
	content = bearer.ReplaceAllString(content, "$1 "+redacted)
	content = userInfo.ReplaceAllString(content, "${1}"+redacted+"@")
	return assignment.ReplaceAllStringFunc(content, func(found string) string {
		parts := assignment.FindStringSubmatch(found)
		name := strings.Trim(strings.TrimRight(parts[1], " \t=:"), `"`)
		if !isSecretName(name) {
			return found
		}
		return parts[1] + `"` + redacted + `"`
	})
}

// isSecretName reports whether the value of a name is a secret.
func isSecretName(name string) bool {
	name = camelCase.ReplaceAllString(name, "${1}_${2}")
	return secretName.MatchString(name) && !harmlessName.MatchString(name)
}

// redactValue removes secrets from decoded JSON. inside means that a parent member has a secret
// name.
func redactValue(value any, inside bool) any {
	switch value := value.(type) {
	case map[string]any:
		header := ""
		for _, member := range []string{"key", "name"} {
			if text, ok := value[member].(string); ok {
				header = text
			}
		}
		for name, member := range value {
			switch text, isText := member.(string); {
			case name == "node": // of a bootstrap: [node] metadata may contain any secret
				if node, isObject := member.(map[string]any); isObject && node["metadata"] != nil {
					node["metadata"] = redactAll(node["metadata"])
				}
				value[name] = redactValue(member, inside)
			case isText && (isSecretName(name) || isHolder(name) &&
				(inside || isSecretName(header))):
				value[name] = redacted
			case isText:
				value[name] = redactText(text)
			default:
				value[name] = redactValue(member, inside || isSecretName(name) ||
					name == "string_match" && isSecretName(header))
			}
		}
		return value
	case []any:
		for i, element := range value {
			if _, isText := element.(string); isText && inside {
				value[i] = redacted
				continue
			}
			value[i] = redactValue(element, inside)
		}
		return value
	case string:
		return redactText(value)
	}
	return value
}

// redactAll replaces all values of decoded JSON.
func redactAll(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			value[name] = redactAll(member)
		}
		return value
	case []any:
		for i, element := range value {
			value[i] = redactAll(element)
		}
		return value
	}
	return redacted
}

// isHolder reports whether a member holds the value of a data source, a header or a string match.
func isHolder(name string) bool {
	switch name {
	case "inline_string", "inline_bytes", "value", "raw_value", "string_value", "exact", "prefix",
		"suffix", "contains", "regex":
		return true
	}
	return false
}
